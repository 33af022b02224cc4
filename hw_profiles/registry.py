"""The profiles that ship with the package, by name, alias or JAX device kind."""

import difflib
import functools
import pathlib

from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.profile_file import read_profile

DATA_DIRECTORY = pathlib.Path(__file__).parent / "data"


@functools.cache
def _profiles() -> dict[str, GpuProfile | NpuProfile]:
  profiles = {}
  for path in sorted(DATA_DIRECTORY.glob("*.json")):
    profile = read_profile(path)
    if profile.name != path.stem:
      raise ValueError(f"{path.name}: name: {profile.name!r} is not the file's name")
    profiles[profile.name] = profile
  return profiles


def _key(name: str) -> str:
  """`name` as profiles are keyed: lower case, one underscore between words."""
  return "_".join(name.lower().replace("-", " ").replace("_", " ").split())


@functools.cache
def _names() -> dict[str, str]:
  """Every accepted key to the profile it means."""
  names: dict[str, str] = {}
  for profile in _profiles().values():
    for name in (profile.name, *profile.aliases):
      owner = names.setdefault(_key(name), profile.name)
      if owner != profile.name:
        raise ValueError(f"{profile.name}.json: aliases: {name!r} already means {owner}")
  return names


def list_profiles() -> tuple[str, ...]:
  """Names of all profiles, sorted."""
  return tuple(sorted(_profiles()))


def get_profile(name: str) -> GpuProfile | NpuProfile:
  """The profile called `name`.

  Args:
    name: A name of `list_profiles()` or an alias ("H100", "910b3"); case,
      spaces, "-" and "_" do not matter.

  Raises:
    ValueError: no profile has that name; the message lists all and the closest.
  """
  if not isinstance(name, str):
    raise ValueError(f"name={name!r}: expected a string, one of {', '.join(list_profiles())}")
  key = _key(name)
  if key in _names():
    return _profiles()[_names()[key]]
  closest = difflib.get_close_matches(key, _names(), n=1, cutoff=0.0)[0]
  raise ValueError(
    f"name={name!r}: no such profile; expected one of {', '.join(list_profiles())}"
    f" (closest: {_names()[closest]})"
  )


def profile_for_device_kind(device_kind: str) -> GpuProfile | None:
  """The profile of the GPU that JAX calls `device_kind`, or None.

  Only the exact device matches: a MIG slice ("NVIDIA H200 MIG 1g.18gb") has
  fewer SMs and less bandwidth than its card, "NVIDIA H100 PCIe" is not the SXM
  part, and a card without a profile has none.
  """
  wanted = " ".join(device_kind.lower().split()).removeprefix("nvidia ")
  for profile in _profiles().values():
    if isinstance(profile, GpuProfile):
      kinds = (kind.lower().removeprefix("nvidia ") for kind in profile.device_kinds)
      if wanted in kinds:
        return profile
  return None
