"""The profile of the device that JAX runs on."""

import importlib
import re
from typing import Any

from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import (
  get_profile,
  list_profiles,
  npu_for_device_kind,
  profile_for_device_kind,
)

# "NVIDIA H100 80GB HBM3 MIG 1g.10gb"; "+me" marks slices with media engines
_MIG = re.compile(r"\s+MIG\s+(?P<slice>\d+g\.\d+gb\S*)\s*$", re.IGNORECASE)
# the word that names the model: "H100", "A100", "4090", "910B3"
_MODEL = re.compile(r"[a-z]*\d{2,}[a-z]*\d*", re.IGNORECASE)


def detect(device: Any = None) -> GpuProfile | NpuProfile:
  """The profile of the device JAX runs on.

  Only exactly the profiled device is taken: a MIG slice, a sibling with other
  memory or clocks (H100 PCIe, H100 NVL, A100 40 GB) or an unknown card has no
  profile, since every time would be another device's.

  Args:
    device: Anything with `device_kind`, and `platform` where it has one, such as
      a `jax.Device`. None: the first device of JAX's default backend; JAX is
      imported only then.

  Raises:
    ValueError: there is no profile of it, it has no `device_kind`, or it is None
      and JAX is missing or has no device. The message says what to do instead.
  """
  if device is None:
    device = _first_jax_device()
  kind = getattr(device, "device_kind", None)
  if not isinstance(kind, str):
    raise ValueError(
      f"device={device!r}: expected an object with a device_kind, such as jax.devices()[0];"
      " get_profile takes names"
    )
  profile = profile_for_device_kind(kind) or npu_for_device_kind(kind)
  if profile is not None:
    return profile
  platform = getattr(device, "platform", None)
  named = f"device_kind={kind!r}" + (f" (platform {platform!r})" if platform else "")
  raise ValueError(f"{named}: {_why_none(kind)}")


def _first_jax_device() -> Any:
  try:
    # by name, so that nothing here depends on JAX
    jax = importlib.import_module("jax")
  except ImportError as error:
    raise ValueError(
      f"device=None: JAX cannot be imported ({error}); name a profile with get_profile, one of"
      f" {', '.join(list_profiles())}"
    ) from None
  try:
    return jax.devices()[0]
  except RuntimeError as error:
    raise ValueError(f"device=None: JAX has no device ({error})") from None


def _why_none(kind: str) -> str:
  """Why no profile is of this device, and what to do."""
  slice_of = _MIG.search(kind)
  if slice_of:
    return _mig_slice(kind[: slice_of.start()], slice_of["slice"])
  relatives = _same_model(kind)
  if relatives:
    kinds = " or ".join(
      f"{profile.name} ({', '.join(repr(kind) for kind in profile.device_kinds)})"
      for profile in relatives
    )
    capability = ".".join(map(str, relatives[0].compute_capability))
    return (
      f"no profile is of exactly this device; {kinds} has the same model number but other SMs,"
      f" clocks or memory. get_profile({relatives[0].name!r}) says what fits on an SM if this"
      f" device's compute capability is {capability} too; for times add a profile of it"
    )
  return (
    f"no profile is of this device; expected one of {', '.join(list_profiles())}, which"
    " get_profile takes by name, or add a profile of it"
  )


def _mig_slice(card_kind: str, size: str) -> str:
  card = profile_for_device_kind(card_kind)
  if card is None:
    return (
      f"a MIG slice ({size}) has no profile, nor has its card {card_kind!r}; name one of"
      f" {', '.join(list_profiles())} with get_profile, or add a profile of the card"
    )
  return (
    f"a MIG slice ({size}) has a part of the SMs, L2 and bandwidth of its card {card.name}, and"
    f" how large a part its name does not say. get_profile({card.name!r}) says what fits on an"
    " SM; for times, dataclasses.replace its sm_count, l2_bytes, l2_bandwidth_bytes_per_s,"
    " dram_bytes, dram_bandwidth_bytes_per_s and peak_flops by the slice's own, or run on a whole"
    " card"
  )


def _same_model(kind: str) -> list[GpuProfile]:
  """GPUs whose device kinds have a model number of `kind`, as "H100" or "4090"."""
  wanted = {word.lower() for word in _MODEL.findall(kind)}
  found = []
  for name in list_profiles():
    profile = get_profile(name)
    if isinstance(profile, GpuProfile):
      models = {_MODEL.search(kind) for kind in profile.device_kinds}
      if any(model and model[0].lower() in wanted for model in models):
        found.append(profile)
  return found
