"""The devices that Huawei's compiler knows, with the sizes that it plans for."""

import dataclasses
import difflib
import functools
import json
import pathlib
from typing import Any

from hw_profiles.registry import get_profile

_FILE = pathlib.Path(__file__).parent / "targets.json"
_BITS_PER_BYTE = 8


@dataclasses.dataclass(frozen=True)
class AscendTarget:
  """One `--target` of the compiler.

  The file keeps sizes in bits, as the compiler prints and reports them.

  Attributes:
    name: For example "Ascend910B3".
    profile: The profile of that chip; None where there is none.
    compiler: "bishengir-compile" for 910, "bishengir-compile-a5" for 950.
    aic_count: Cube cores.
    aiv_count: Vector cores.
    ub_bytes: Unified buffer of a vector core.
    l1_bytes: L1 of a cube core.
    l0a_bytes: L0A, which the compiler neither plans nor checks.
    l0b_bytes: L0B, likewise.
    l0c_bytes: L0C of a cube core.
    ub_alignment_bytes: Buffers in UB start at multiples of this.
    l1_alignment_bytes: The same in L1.
    l0c_alignment_bytes: The same in L0C.
  """

  name: str
  profile: str | None
  compiler: str
  aic_count: int
  aiv_count: int
  ub_bytes: int
  l1_bytes: int
  l0a_bytes: int
  l0b_bytes: int
  l0c_bytes: int
  ub_alignment_bytes: int
  l1_alignment_bytes: int
  l0c_alignment_bytes: int

  @property
  def is_950(self) -> bool:
    """Whether this is the 950 generation: L0C to UB directly, another compiler."""
    return self.compiler == "bishengir-compile-a5"

  @property
  def has_l0c_to_ub(self) -> bool:
    """Whether cube cores reach UB: those of the 950 generation."""
    return self.is_950

  @property
  def default_multi_buffer(self) -> bool:
    """Whether triton-ascend 3.2 asks for double buffering on this target."""
    return not self.is_950

  @property
  def default_sub_block(self) -> bool:
    """Whether triton-ascend 3.2 asks to share a mixed tile between the vector cores."""
    return not self.is_950

  def capacity_bytes(self, space: str) -> int:
    """Size of "UB", "L1", "L0A", "L0B" or "L0C" of one core."""
    sizes = {
      "UB": self.ub_bytes,
      "L1": self.l1_bytes,
      "L0A": self.l0a_bytes,
      "L0B": self.l0b_bytes,
      "L0C": self.l0c_bytes,
    }
    if space not in sizes:
      raise ValueError(f"space={space!r}: expected one of {', '.join(sizes)}")
    return sizes[space]


@functools.cache
def _file() -> dict[str, Any]:
  return json.loads(_FILE.read_text(encoding="utf-8"))


@functools.cache
def _targets() -> dict[str, AscendTarget]:
  profiles = {target: profile for profile, target in _file()["profiles"].items()}
  found = {}
  for family in _file()["families"]:
    sizes = {
      f"{name.removesuffix('_bits')}_bytes": value // _BITS_PER_BYTE
      for name, value in family.items()
      if name.endswith("_bits")
    }
    for name in family["targets"]:
      found[name] = AscendTarget(
        name=name,
        profile=profiles.get(name),
        compiler=family["compiler"],
        aic_count=family["aic_count"],
        aiv_count=family["aiv_count"],
        **sizes,
      )
  return found


def list_targets() -> tuple[str, ...]:
  """Names of all targets, sorted."""
  return tuple(sorted(_targets()))


def get_target(name: str | AscendTarget) -> AscendTarget:
  """The target called `name`: a target itself, or a profile or alias that has one.

  "ascend_910c_die" is the 24-core die Ascend910_9392, "ascend_950pr" the 32-core
  Ascend950PR_9589, "ascend_950dt" the 32-core Ascend950DT_9581.

  Raises:
    ValueError: there is no such target; the message has the closest.
  """
  if isinstance(name, AscendTarget):
    return name
  if not isinstance(name, str):
    raise ValueError(f"target={name!r}: expected an AscendTarget or the name of one")
  profiles = _file()["profiles"]
  if name in _targets() or name in profiles:
    return _targets()[profiles.get(name, name)]
  try:
    profile = get_profile(name).name
  except ValueError:
    profile = ""
  if profile in profiles:
    return _targets()[profiles[profile]]
  close = difflib.get_close_matches(name, [*_targets(), *profiles], n=1, cutoff=0.0)[0]
  raise ValueError(
    f"target={name!r}: expected one of the profiles {', '.join(profiles)} or a target that the"
    f" compiler knows (closest: {close}; hw_profiles.ascend.list_targets() has all)"
  )
