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
  """`name` as profiles are keyed: lower case, one underscore between words, no maker."""
  key = "_".join(name.lower().replace("-", " ").replace("_", " ").split())
  return key.removeprefix("nvidia_").removeprefix("huawei_")


@functools.cache
def _names() -> dict[str, str]:
  """Every accepted key to the profile it means: names, aliases, device kinds.

  Raises:
    ValueError: two profiles claim one; where neither has it as its own name the
      message names both files, as either may be the copy.
  """
  names = _own_names()
  # a device kind is no name where it is another profile's alias
  for kind, profile in _kinds().items():
    names.setdefault(_key(kind), profile.name)
  return names


def _own_names() -> dict[str, str]:
  """Names and aliases, as `_names` has them."""
  names = {_key(name): name for name in _profiles()}
  for profile in _profiles().values():
    for alias in profile.aliases:
      owner = names.setdefault(_key(alias), profile.name)
      if owner == profile.name:
        continue
      if _key(owner) == _key(alias):
        raise ValueError(f"{profile.name}.json: aliases: {alias!r} is the name of {owner}")
      raise ValueError(
        f"{owner}.json and {profile.name}.json: aliases: {alias!r} is in both; expected in one"
      )
  return names


def _kind_key(device_kind: str) -> str:
  """`device_kind` as profiles are matched: lower case, single spaces, without the maker."""
  return " ".join(device_kind.lower().split()).removeprefix("nvidia ")


@functools.cache
def _kinds() -> dict[str, GpuProfile]:
  """Every device kind, as `_kind_key` has it, to its profile.

  Raises:
    ValueError: two profiles claim one; the message names both files.
  """
  kinds: dict[str, GpuProfile] = {}
  for profile in _profiles().values():
    if not isinstance(profile, GpuProfile):
      continue
    for kind in profile.device_kinds:
      owner = kinds.setdefault(_kind_key(kind), profile)
      if owner is not profile:
        raise ValueError(
          f"{owner.name}.json and {profile.name}.json: device_kinds: {kind!r} is in both;"
          " expected in one"
        )
  return kinds


def list_profiles() -> tuple[str, ...]:
  """Names of all profiles, sorted."""
  return tuple(sorted(_profiles()))


def get_profile(name: str) -> GpuProfile | NpuProfile:
  """The profile called `name`.

  Args:
    name: A name of `list_profiles()`, an alias ("H100", "910b3") or a device kind
      ("NVIDIA H200"); case, spaces, "-", "_" and the maker's name do not matter.

  Raises:
    ValueError: no profile has that name; the message lists all, and the closest
      where one is close.
  """
  if not isinstance(name, str):
    raise ValueError(f"name={name!r}: expected a string, one of {', '.join(list_profiles())}")
  return _called(name, argument="name")


def _called(name: str, *, argument: str) -> GpuProfile | NpuProfile:
  """`get_profile`, whose error names the argument that the user gave."""
  key = _key(name)
  if key in _names():
    return _profiles()[_names()[key]]
  # difflib's own cutoff: below it "hopper" is closest to ascend_950pr
  close = difflib.get_close_matches(key, _names(), n=1, cutoff=0.6)
  closest = f" (closest: {_names()[close[0]]})" if close else ""
  raise ValueError(
    f"{argument}={name!r}: no such profile; expected one of {', '.join(list_profiles())}{closest}"
  )


def resolve(profile: str | GpuProfile | NpuProfile) -> GpuProfile | NpuProfile:
  """`profile` itself, or the profile of that name.

  Raises:
    ValueError: it is neither a profile nor the name of one.
  """
  if isinstance(profile, GpuProfile | NpuProfile):
    return profile
  if not isinstance(profile, str):
    raise ValueError(
      f"profile={profile!r}: expected a GpuProfile, an NpuProfile or the name of one of"
      f" {', '.join(list_profiles())}"
    )
  return _called(profile, argument="profile")


def resolve_gpu(gpu: str | GpuProfile) -> GpuProfile:
  """`gpu` itself, or the profile of that name.

  Raises:
    ValueError: it is neither the profile of a GPU nor the name of one.
  """
  if isinstance(gpu, GpuProfile):
    return gpu
  found = _called(gpu, argument="gpu") if isinstance(gpu, str) else gpu
  if isinstance(found, GpuProfile):
    return found
  gpus = [name for name, profile in _profiles().items() if isinstance(profile, GpuProfile)]
  got = found.name if isinstance(found, NpuProfile) else found
  raise ValueError(f"gpu={got!r}: expected a GpuProfile or the name of one of {', '.join(gpus)}")


def profile_for_device_kind(device_kind: str) -> GpuProfile | None:
  """The profile of the GPU that JAX calls `device_kind`, or None.

  Only the exact device matches: a MIG slice ("NVIDIA H200 MIG 1g.18gb") has
  fewer SMs and less bandwidth than its card, "NVIDIA H100 PCIe" is not the SXM
  part, and a card without a profile has none.

  Raises:
    ValueError: `device_kind` is not a string.
  """
  if not isinstance(device_kind, str):
    raise ValueError(f"device_kind={device_kind!r}: expected a string, as jax.Device.device_kind")
  return _kinds().get(_kind_key(device_kind))


def npu_for_device_kind(device_kind: str) -> NpuProfile | None:
  """The profile of the Ascend NPU that is called `device_kind` ("Ascend910B3"), or None."""
  name = _own_names().get(_key(device_kind))
  profile = None if name is None else _profiles()[name]
  return profile if isinstance(profile, NpuProfile) else None
