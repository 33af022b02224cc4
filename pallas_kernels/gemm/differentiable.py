"""The matmul that JAX's transformations see: batching and gradients around `run`.

`vmap` becomes the kernels' own batch dimension, or more rows where B is
shared, instead of an extra grid axis. The backward pass is two more products
through the same kernels.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from pallas_kernels import activations
from pallas_kernels.gemm import implementations
from pallas_kernels.gemm.epilogue import make_epilogue
from pallas_kernels.gemm.request import MatmulRequest


def _batch_of(*operands: jax.Array | None) -> int:
  return max(1 if x is None else x.shape[0] for x in operands)


def _merge_batch(array: jax.Array, *, batched: bool, axis_size: int, batch: int) -> jax.Array:
  """Fold a vmapped axis into an operand's batch dimension.

  Args:
    array: [axis_size, b, ...] where batched, else [b, ...]; b is 1 or batch.
    batched: Whether the leading axis is there.
    axis_size: Size of the vmapped axis.
    batch: Batch of the operands together, without that axis.

  Returns:
    [axis_size·batch, ...], or [1, ...] where the operand is the same for all.
  """
  if not batched and (array.shape[0] == 1 or batch == 1):
    return array
  if not batched:
    array = array[None]
  rest = array.shape[2:]
  return jnp.broadcast_to(array, (axis_size, batch, *rest)).reshape(axis_size * batch, *rest)


def _batched_run(request: MatmulRequest, *operands: jax.Array) -> jax.Array:
  """`implementations.run` with its own vmap rule; operands are (a, b[, bias])."""

  @custom_vmap
  def call(*operands: jax.Array) -> jax.Array:
    a, b, *rest = operands
    return implementations.run(request, a, b, rest[0] if rest else None)

  @call.def_vmap
  def _rule(axis_size: int, in_batched: list[bool], *operands: jax.Array) -> tuple[Any, bool]:
    sizes = [
      x.shape[1] if batched else x.shape[0] for x, batched in zip(operands, in_batched, strict=True)
    ]
    batch = max(sizes)
    a, shared = operands[0], operands[1:]
    if in_batched[0] and not any(in_batched[1:]) and all(x.shape[0] == 1 for x in shared):
      # one B for all: the mapped axis is only more rows of A
      rows = a.reshape(1, -1, a.shape[-1])
      out = _batched_run(request, rows, *shared)
      return out.reshape(axis_size, batch, a.shape[-2], out.shape[-1]), True
    merged = [
      _merge_batch(x, batched=batched, axis_size=axis_size, batch=batch)
      for x, batched in zip(operands, in_batched, strict=True)
    ]
    out = _batched_run(request, *merged)
    return out.reshape(axis_size, batch, *out.shape[1:]), True

  return call(*operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def matmul(request: MatmulRequest, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
  """epilogue(a·b + bias) on [batch or 1, M, K], [batch or 1, K, N], [batch or 1, N]."""
  operands = (a, b) if bias is None else (a, b, bias)
  return _batched_run(request, *operands)


def _forward(
  request: MatmulRequest, a: jax.Array, b: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, tuple[Any, ...]]:
  return matmul(request, a, b, bias), (a, b, bias)


def _backward(
  request: MatmulRequest, residuals: tuple[Any, ...], d_out: jax.Array
) -> tuple[Any, ...]:
  """Gradients of out = round_out(act(s)), s = round_mid(A·B + bias).

      ds = d_out ⊙ act'(s);  dA = ds·Bᵀ;  dB = Aᵀ·ds;  dbias = Σ_rows ds

  Roundings count as the identity. s is recomputed by one more product, not
  kept: at M=1024, N=12288 keeping it would write and read 24 MiB for each
  layer. ds is rounded to the operands' dtype, as the unfused program rounds it,
  and the products accumulate in float32.
  """
  a, b, bias = residuals
  epilogue = request.epilogue
  d_s = d_out
  if epilogue.activation is not None:
    before = dataclasses.replace(
      request,
      epilogue=make_epilogue(
        activation=None, intermediate_dtype=None, out_dtype=epilogue.intermediate_dtype
      ),
    )
    s = matmul(before, a, b, bias).astype(jnp.float32)
    d_s = d_out.astype(jnp.float32) * activations.derivative(epilogue.activation, s)
  d_bias = None
  if bias is not None:
    d_bias = jnp.sum(d_s, axis=1, dtype=jnp.promote_types(d_s.dtype, jnp.float32))
    d_bias = _sum_shared(d_bias, bias)
  d_s = d_s.astype(a.dtype)
  d_a = _product(request, d_s, jnp.swapaxes(b, 1, 2), like=a)
  d_b = _product(request, jnp.swapaxes(a, 1, 2), d_s, like=b)
  return d_a, d_b, d_bias


def _sum_shared(gradient: jax.Array, operand: jax.Array) -> jax.Array:
  """Sum the gradient over the batch where the operand was shared by the batch."""
  if operand.shape[0] == 1 and gradient.shape[0] != 1:
    gradient = jnp.sum(
      gradient, axis=0, keepdims=True, dtype=jnp.promote_types(gradient.dtype, jnp.float32)
    )
  return gradient.astype(operand.dtype)


def _product(request: MatmulRequest, x: jax.Array, y: jax.Array, *, like: jax.Array) -> jax.Array:
  """x·y for the gradient of `like`, planned for its own shape."""
  shared = like.shape[0] == 1 and _batch_of(x, y) > 1
  plain = dataclasses.replace(
    request,
    config=None,
    epilogue=make_epilogue(
      activation=None,
      intermediate_dtype=None,
      # a gradient summed over the batch is summed before it is rounded
      out_dtype=jnp.promote_types(like.dtype, jnp.float32) if shared else like.dtype,
    ),
  )
  return _sum_shared(matmul(plain, x, y, None), like)


matmul.defvjp(_forward, _backward)
