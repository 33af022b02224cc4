"""What portable kernels share: edges of blocks, and reasons against compiling through Triton."""

import itertools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hw_profiles.profile import E4M3_COMPUTE_CAPABILITY
from pallas_kernels import dispatch
from pallas_kernels.device import TargetDevice
from pallas_kernels.dispatch import Implementation, Refusal

MIN_COMPUTE_CAPABILITY = (8, 0)
# Beyond this the lowering's 32-bit offsets of an array of 1-byte elements wrap:
# it takes 64-bit ones only from 2^32 bytes on.
LARGEST_OFFSET = 2**31

# What the Triton lowering makes of a dot of float32 operands; 16-bit ones have None.
_PRESETS = ("TF32_TF32_F32", "TF32_TF32_F32_X3", "F32_F32_F32", "BF16_BF16_F32")
DOT_PRECISIONS = (
  None,
  *lax.Precision,
  *itertools.product(lax.Precision, repeat=2),
  *(lax.DotAlgorithmPreset[name] for name in _PRESETS),
)


def in_bounds(shape: tuple[int, ...], *, rows: Any, columns: Any) -> jax.Array | None:
  """Mask of a block's elements with row < rows and column < columns; None: no limit."""
  mask = None
  for axis, limit in enumerate((rows, columns)):
    if limit is not None:
      inside = lax.broadcasted_iota(jnp.int32, shape, axis) < limit
      mask = inside if mask is None else mask & inside
  return mask


def batch_index(array: Any, batch: Any) -> Any:
  """Where a batch's part is in an array of [batch or 1, ...]."""
  return 0 if array.shape[0] == 1 else batch


def compiled_refusal(
  one: Implementation, device: TargetDevice, *, precision: Any = None
) -> Refusal | None:
  """Why a portable kernel does not compile here; None for an interpreted one."""
  if one.interpreted:
    return None
  found = dispatch.needs_gpu(device)
  if found is None and precision not in DOT_PRECISIONS:
    found = Refusal("option", f"precision={precision!r}: Triton's lowering has no such dot")
  capability = device.compute_capability
  if found is None and capability is not None and capability < MIN_COMPUTE_CAPABILITY:
    found = Refusal(
      "device", f"Triton's lowering needs compute capability 8.0, and this is {device.kind!r}"
    )
  return found


def offset_refusal(one: Implementation, name: str, elements: int) -> Refusal | None:
  """Why a portable kernel does not compile for an array of 1-byte elements, or None.

  Args:
    one: The implementation; an interpreter has no such offsets.
    name: Of the array, for the message.
    elements: How many it has.
  """
  if one.interpreted or not LARGEST_OFFSET < elements <= 2 * LARGEST_OFFSET:
    return None
  return Refusal(
    "option",
    f"{name}: {elements} elements of 1 byte; Triton's lowering has 32-bit offsets up to 2^32"
    " bytes, and they wrap at 2^31",
  )


def e4m3_refusal(
  one: Implementation, device: TargetDevice, dtypes: Iterable[jnp.dtype]
) -> Refusal | None:
  """Why a portable kernel of these dtypes does not compile here; None for an interpreted one."""
  capability = device.compute_capability
  if one.interpreted or capability is None or capability >= E4M3_COMPUTE_CAPABILITY:
    return None
  if jnp.dtype(jnp.float8_e4m3fn) not in dtypes:
    return None
  needed, has = (".".join(map(str, x)) for x in (E4M3_COMPUTE_CAPABILITY, capability))
  return Refusal(
    "dtype", f"float8_e4m3fn needs compute capability {needed}, {device.kind!r} has {has}"
  )
