"""Every difference between the JAX versions this library supports (0.10.2 and later).

Kernels ask this module and never look at a version themselves. Each entry says
what differs and since when.
"""

from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

# MLIR as jaxlib has it, which the code inside `plgpu.inline_mgpu` is written in. It is no public
# interface; what is used of it is the same in all versions up to 0.12.
from jaxlib.mlir import ir as ir
from jaxlib.mlir.dialects import arith as arith
from jaxlib.mlir.dialects import llvm as llvm
from jaxlib.mlir.dialects import memref as memref
from jaxlib.mlir.dialects import nvvm as nvvm
from jaxlib.mlir.dialects import vector as vector

_AT_LEAST_0_11 = jax.__version_info__ >= (0, 11)
_AT_LEAST_0_12 = jax.__version_info__ >= (0, 12)

# The Mosaic GPU interpreter of jax 0.10 reports a TMA copy that crosses the
# edge of its array as an error; the hardware, and the interpreter from 0.11
# on, fill with zeros on load and clip on store.
INTERPRETER_CLIPS_TMA: bool = _AT_LEAST_0_11

# jax 0.10 finds no register layout for an array that a loop carries from one
# iteration to the next.
CARRIES_ARRAYS: bool = _AT_LEAST_0_11

# The same interpreter takes no transposed reference as a wgmma operand.
INTERPRETER_TRANSPOSES: bool = _AT_LEAST_0_11

# From jax 0.11 on a swizzled staging buffer may be untiled, and the array it is
# stored to may then have any number of rows; before, the layout inference tiles
# it, and the array must be a multiple of the tile.
SWIZZLES_UNTILED: bool = _AT_LEAST_0_11


def gpu_interpret_params(*, detect_races: bool = False) -> Any:
  """Parameters that make `plgpu.kernel(interpret=...)` run on a CPU.

  The class is public from jax 0.11 on; from 0.12 on a race is an exception
  unless it is told to warn, as the versions before do.
  """
  if _AT_LEAST_0_12:
    return plgpu.InterpretGPUParams(detect_races=detect_races, on_race="warn")
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


def transposed_ref(ref: Any) -> Any:
  """A matrix in shared memory seen transposed."""
  return permuted_ref(ref, (1, 0))


def permuted_ref(ref: Any, permutation: tuple[int, ...]) -> Any:
  """Shared memory with its dimensions in another order; a method of references from jax 0.11 on."""
  if _AT_LEAST_0_11:
    return ref.transpose(permutation)
  return plgpu.transpose_ref(ref, permutation)


def load_elementwise(ref: Any, *, interpreted: bool) -> jax.Array:
  """Load element by element into whatever register layout the use asks for.

  jax 0.10 takes the index as an argument, 0.11 in the ref, and the interpreter
  of 0.10 knows only plain indexing. `optimized=False` because there is no
  faster path into the layout of a vector that is broadcast over a wgmma's block.
  """
  if _AT_LEAST_0_11:
    return plgpu.load(ref, optimized=False)
  if interpreted:
    return ref[...]
  return plgpu.load(ref, (), optimized=False)
