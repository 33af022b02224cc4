"""Every difference between the JAX versions this library supports (0.10.2 and later).

Kernels ask this module and never look at a version themselves. Each entry says
what differs and since when.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

_AT_LEAST_0_11 = jax.__version_info__ >= (0, 11)

# The Mosaic GPU interpreter of jax 0.10 reports a TMA copy that crosses the
# edge of its array as an error; the hardware, and the interpreter from 0.11
# on, fill with zeros on load and clip on store.
INTERPRETER_CLIPS_TMA: bool = _AT_LEAST_0_11

# From jax 0.11 on a swizzled staging buffer may be untiled, and the array it is
# stored to may then have any number of rows; before, the layout inference tiles
# it, and the array must be a multiple of the tile.
SWIZZLES_UNTILED: bool = _AT_LEAST_0_11


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


def target_device() -> TargetDevice:
  """The device JAX would run the current trace on.

  An abstract device set with `jax.sharding.use_abstract_mesh` comes first: it
  is how a program is lowered for a GPU on a machine without one. Then
  `jax.default_device`, then the first device of the default backend.
  """
  abstract = jax.sharding.get_abstract_mesh().abstract_device
  if abstract is not None:
    # jax 0.10 names no platform on abstract devices of some meshes
    platform = getattr(abstract, "platform", None) or "gpu"
    return TargetDevice(
      platform="gpu" if platform in ("gpu", "cuda") else platform,
      kind=abstract.device_kind,
      num_cores=abstract.num_cores,
      compute_capability=None,
    )
  config: Any = jax.config
  device = config.jax_default_device
  if device is None or isinstance(device, str):
    device = jax.devices(device)[0]
  capability = getattr(device, "compute_capability", None)
  parts = str(capability).split(".") if capability is not None else []
  return TargetDevice(
    platform=device.platform,
    kind=device.device_kind,
    num_cores=getattr(device, "core_count", None),
    compute_capability=(
      (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(map(str.isdigit, parts)) else None
    ),
  )


@contextlib.contextmanager
def abstract_gpu(*, device_kind: str, num_cores: int) -> Iterator[None]:
  """Trace and lower as if on this GPU: `jax.jit(f).trace(...)` inside needs no GPU.

  Args:
    device_kind: As JAX names it, for example "NVIDIA H200".
    num_cores: Streaming multiprocessors.
  """
  device = jax.sharding.AbstractDevice(  # type: ignore[attr-defined, unused-ignore]
    device_kind=device_kind, num_cores=num_cores, platform="gpu"
  )
  mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
  with jax.sharding.use_abstract_mesh(mesh):
    yield


def gpu_interpret_params(*, detect_races: bool = False) -> Any:
  """Parameters that make `plgpu.kernel(interpret=...)` run on a CPU.

  The class is public from jax 0.11 on.
  """
  if _AT_LEAST_0_11:
    return plgpu.InterpretGPUParams(detect_races=detect_races)
  from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

  return InterpretGPUParams(detect_races=detect_races)


def reset_gpu_interpreter() -> None:
  """Clear the interpreter's state: needed after a kernel raised inside it."""
  from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

  gpu_callbacks.reset_gpu_interpret_mode_state()


def races_found() -> bool:
  """Whether the last kernel interpreted with `detect_races` had a data race."""
  from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

  return bool(gpu_callbacks.get_races().races_found)


def _varying(array: jax.Array) -> frozenset[Any]:
  return frozenset(jax.typeof(array).manual_axis_type.varying)


def vary_together(*arrays: jax.Array) -> tuple[jax.Array, ...]:
  """`arrays`, each marked as varying over every mesh axis that any of them varies over.

  Inside `shard_map(check_vma=True)` a kernel's operands must agree on this.
  Elsewhere nothing changes.
  """
  axes = frozenset[Any]().union(*map(_varying, arrays))
  return tuple(
    jax.lax.pcast(x, tuple(axes - _varying(x)), to="varying") if axes - _varying(x) else x
    for x in arrays
  )


def out_struct(shape: tuple[int, ...], dtype: Any, like: jax.Array) -> jax.ShapeDtypeStruct:
  """The type of a kernel output that varies over the mesh axes that `like` does."""
  return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(like).manual_axis_type)


def load_gmem(ref: Any, *, interpreted: bool) -> jax.Array:
  """Load from global memory into whatever register layout the use asks for.

  jax 0.10 takes the index as an argument, 0.11 in the ref, and the interpreter
  of 0.10 knows only plain indexing. `optimized=False` because there is no
  swizzled path from global memory to a wgmma layout.
  """
  if _AT_LEAST_0_11:
    return plgpu.load(ref, optimized=False)
  if interpreted:
    return ref[...]
  return plgpu.load(ref, (), optimized=False)
