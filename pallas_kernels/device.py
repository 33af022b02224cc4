"""The device a trace will run on, and the profile it is planned with."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

import hw_profiles

# Tiles for an interpreter, or for a Hopper GPU without a profile of its own.
_HOPPER_PROFILE = "h100_sxm"
# Tiles for any other GPU without a profile: of all known GPUs of compute
# capability 8.0 and later it has the least shared memory a block, 99 KiB.
_CONSERVATIVE_PROFILE = "rtx_pro_6000"


@dataclasses.dataclass(frozen=True)
class TargetDevice:
  """The device that a trace happening now will run on.

  Attributes:
    platform: "cpu", "gpu" or "tpu".
    kind: The device kind as JAX names it, for example "NVIDIA H200".
    num_cores: Streaming multiprocessors, or None where JAX does not say.
    compute_capability: (major, minor) of an NVIDIA GPU, or None where unknown.
  """

  platform: str
  kind: str
  num_cores: int | None
  compute_capability: tuple[int, int] | None

  @property
  def is_hopper(self) -> bool:
    """Whether it has wgmma: compute capability 9.0."""
    return self.compute_capability == (9, 0)


def target_device() -> TargetDevice:
  """The device JAX would run the current trace on.

  An abstract device set with `jax.sharding.use_abstract_mesh` comes first: it
  is how a program is lowered for a GPU on a machine without one. Then
  `jax.default_device`, then the first device of the default backend. Where the
  operands of a jitted call are committed to another device, tracing cannot see
  it: name the implementation, or set `jax.default_device`.
  """
  abstract = jax.sharding.get_abstract_mesh().abstract_device
  if abstract is not None:
    # jax 0.10 names no platform on abstract devices of some meshes
    platform = getattr(abstract, "platform", None) or "gpu"
    return TargetDevice(
      platform="gpu" if platform in ("gpu", "cuda") else platform,
      kind=abstract.device_kind,
      num_cores=abstract.num_cores,
      compute_capability=_profiled_capability(abstract.device_kind),
    )
  config: Any = jax.config
  device = config.jax_default_device
  if device is None or isinstance(device, str):
    device = jax.devices(device)[0]
  return TargetDevice(
    platform=device.platform,
    kind=device.device_kind,
    num_cores=getattr(device, "core_count", None),
    compute_capability=_parsed_capability(getattr(device, "compute_capability", None)),
  )


def _parsed_capability(text: Any) -> tuple[int, int] | None:
  """(9, 0) of "9.0"; None of anything else (a CPU has none)."""
  parts = str(text).split(".")
  if len(parts) == 2 and all(part.isdigit() for part in parts):
    return int(parts[0]), int(parts[1])
  return None


def _profiled_capability(kind: str) -> tuple[int, int] | None:
  profile = hw_profiles.profile_for_device_kind(kind)
  return None if profile is None else profile.compute_capability


def planning_profile(device: TargetDevice) -> tuple[hw_profiles.GpuProfile, bool]:
  """The profile that tiles for `device` are planned with, and whether it is its own.

  A stand-in says which tiles are safe, not how long they take.
  """
  profile = hw_profiles.profile_for_device_kind(device.kind)
  if profile is not None:
    return profile, True
  hopper_like = device.platform != "gpu" or device.is_hopper
  stand_in = hw_profiles.get_profile(_HOPPER_PROFILE if hopper_like else _CONSERVATIVE_PROFILE)
  assert isinstance(stand_in, hw_profiles.GpuProfile)
  return stand_in, False


def cores_of(device: TargetDevice) -> int:
  """Streaming multiprocessors; those of the profile where JAX does not say."""
  return device.num_cores or planning_profile(device)[0].sm_count


@contextlib.contextmanager
def abstract_gpu(*, device_kind: str, num_cores: int) -> Iterator[None]:
  """Trace and lower as if on this GPU: `jax.jit(f).trace(...)` inside needs no GPU.

  Args:
    device_kind: As JAX names it, for example "NVIDIA H200".
    num_cores: Streaming multiprocessors.
  """
  device = jax.sharding.AbstractDevice(device_kind=device_kind, num_cores=num_cores, platform="gpu")
  mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
  with jax.sharding.use_abstract_mesh(mesh):
    yield
