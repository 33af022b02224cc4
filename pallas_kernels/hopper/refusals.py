"""Reasons against running a Hopper kernel that do not depend on the op."""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import compat, dispatch
from pallas_kernels.device import TargetDevice
from pallas_kernels.dispatch import Implementation, Refusal


def device_refusal(one: Implementation, device: TargetDevice) -> Refusal | None:
  """A device without TMA and wgmma; the interpreter runs anywhere."""
  if one.interpreted:
    return None
  found = dispatch.needs_gpu(device)
  if found is None and not device.is_hopper:
    found = Refusal("device", f"needs Hopper (compute capability 9.0), and this is {device.kind!r}")
  return found


def wide_operand_refusal(dtype: Any) -> Refusal:
  """Of float32 operands, and wider ones."""
  return Refusal(
    "dtype",
    f"{jnp.dtype(dtype).name} operands: the kernel multiplies 16-bit dtypes, wgmma would round to"
    " TF32",
  )


OLDER_JAX = (
  "needs jax 0.11 or later, which finds register layouts for what its loop carries; this is jax "
  f"{jax.__version__}"
)
"""What an attention kernel for Hopper says where `compat.CARRIES_ARRAYS` is false."""


def walk_refusal(one: Implementation, device: TargetDevice, dtype: Any) -> Refusal | None:
  """Of an attention kernel, which multiplies 16-bit operands and carries arrays along a walk."""
  found = device_refusal(one, device)
  if found is None and jnp.dtype(dtype).itemsize != 2:
    found = wide_operand_refusal(dtype)
  if found is None and not compat.CARRIES_ARRAYS:
    found = Refusal("option", OLDER_JAX)
  return found
