"""From the arrays of a public function to the 3-d operands of the kernels, and its explanation."""

import math

import jax
import jax.numpy as jnp

from pallas_kernels import dispatch
from pallas_kernels.device import TargetDevice
from pallas_kernels.gemm import implementations
from pallas_kernels.gemm.gradient_notes import gradient_notes
from pallas_kernels.gemm.operands import Operands
from pallas_kernels.gemm.request import GemmRequest


def kernel_shapes(
  a_shape: tuple[int, ...], b_shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, int, int], tuple[int, int, int]]:
  """Result's leading dimensions, and the 3-d shapes the kernels take.

  With one B, the leading dimensions of A are only more rows.
  """
  lead = jnp.broadcast_shapes(a_shape[:-2], b_shape[:-2])
  m, k = a_shape[-2:]
  n = b_shape[-1]
  if math.prod(b_shape[:-2]) == 1:
    return lead, (1, math.prod(lead) * m, k), (1, k, n)
  batch = math.prod(lead)
  a_batch = 1 if math.prod(a_shape[:-2]) == 1 else batch
  return lead, (a_batch, m, k), (batch, k, n)


def as_matrices(
  a: jax.Array, bs: tuple[jax.Array, ...]
) -> tuple[tuple[int, ...], jax.Array, tuple[jax.Array, ...]]:
  """Result's leading dimensions, A and each B in the kernels' shapes."""
  lead, a_shape, b_shape = kernel_shapes(a.shape, bs[0].shape)
  return lead, _as(a, a_shape, lead), tuple(_as(b, b_shape, lead) for b in bs)


def _as(array: jax.Array, shape: tuple[int, int, int], lead: tuple[int, ...]) -> jax.Array:
  """An operand broadcast over the leading dimensions, where it has to be, and reshaped."""
  own = array.shape[:-2]
  # one matrix for all, or exactly as many as are wanted
  wanted = own if math.prod(shape) == math.prod(array.shape[-2:]) else lead
  return jnp.broadcast_to(array, (*wanted, *array.shape[-2:])).reshape(shape)


def explain_request(
  request: GemmRequest,
  operands: Operands,
  call: str,
  device: TargetDevice,
  *,
  differentiated: tuple[str, tuple[str, ...]] | None = None,
) -> dispatch.Explanation:
  """What would run a request on operands, or on their shapes.

  Args:
    request: Of the call.
    operands: Its arrays in the kernels' shapes.
    call: The call in one line.
    device: Where it will run.
    differentiated: What the caller knows A and every B as, where they have gradients.
  """
  problem = request.problem(operands)
  choice = implementations.choose(request, problem, device)
  notes: tuple[str, ...] = ()
  if problem.is_empty:
    notes = ("nothing to multiply: the result is empty, or the epilogue of zeros",)
  elif differentiated is not None:
    left, right = differentiated
    notes = gradient_notes(request, operands, device, left=left, right=right)
  return choice.explanation(request.op, call, device, *notes)
