"""The matmul that JAX's transformations see: batching and gradients around `run`."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import activations
from pallas_kernels.batching import batch_of, batched, sum_shared
from pallas_kernels.dtypes import accumulator_dtype, round_once
from pallas_kernels.gemm import implementations
from pallas_kernels.gemm.request import MatmulRequest


def _run(request: MatmulRequest, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
  """`implementations.run`, with vmap as more batch, or as more rows where B is shared."""

  def run(*operands: jax.Array) -> jax.Array:
    a, b, *rest = operands
    return implementations.run(request, (a, b, rest[0] if rest else None))

  def as_rows(a: jax.Array, *shared: jax.Array) -> jax.Array:
    out = batched(run, a.reshape(1, -1, a.shape[-1]), *shared, rows=as_rows)
    return out.reshape(*a.shape[:-1], out.shape[-1])

  operands = (a, b) if bias is None else (a, b, bias)
  return batched(run, *operands, rows=as_rows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def matmul(request: MatmulRequest, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
  """epilogue(a·b + bias) on [batch or 1, M, K], [batch or 1, K, N], [batch or 1, N]."""
  return _run(request, a, b, bias)


def _forward(
  request: MatmulRequest, a: jax.Array, b: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, tuple[Any, ...]]:
  """The result, and what the gradient needs: with an activation also its argument s.

  s is stored and the activation applied to what was stored, as an unfused
  program would: the same roundings in the same places. Computing s again in
  the backward pass would cost a third product more: 130 us at 1024 x 4096 x
  12288 on an H200, against some 15 us for the 48 MiB to write and read s.
  """
  epilogue = request.epilogue
  if epilogue.activation is None:
    return matmul(request, a, b, bias), (a, b, bias, None)
  s = matmul(request.without_activation(epilogue.intermediate_dtype), a, b, bias)
  out = activations.apply(epilogue.activation, s.astype(accumulator_dtype(s.dtype)))
  return round_once(out, epilogue.out_dtype), (a, b, bias, s)


def _backward(
  request: MatmulRequest, residuals: tuple[Any, ...], d_out: jax.Array
) -> tuple[Any, ...]:
  """Gradients of out = round_out(act(s)), s = round_mid(A·B + bias).

      ds = d_out ⊙ act'(s);  dA = ds·Bᵀ;  dB = Aᵀ·ds;  dbias = Σ_rows ds

  Roundings count as the identity. ds is rounded to the operands' dtype, as the
  unfused program rounds it, and the products accumulate in float32.
  """
  a, b, bias, s = residuals
  d_s = d_out
  if request.epilogue.activation is not None:
    wide = accumulator_dtype(a.dtype)
    slope = activations.derivative(request.epilogue.activation, s.astype(wide))
    d_s = d_out.astype(wide) * slope
  d_bias = None
  if bias is not None:
    d_bias = sum_shared(jnp.sum(d_s, axis=1, dtype=accumulator_dtype(d_s.dtype)), bias)
  d_s = round_once(d_s, a.dtype)
  d_a = _product(request, d_s, jnp.swapaxes(b, 1, 2), like=a)
  d_b = _product(request, jnp.swapaxes(a, 1, 2), d_s, like=b)
  return d_a, d_b, d_bias


def _product(request: MatmulRequest, x: jax.Array, y: jax.Array, *, like: jax.Array) -> jax.Array:
  """x·y for the gradient of `like`, planned for its own shape."""
  shared = like.shape[0] == 1 and batch_of(x, y) != 1
  # a gradient summed over the batch is summed before it is rounded
  out_dtype = accumulator_dtype(like.dtype) if shared else like.dtype
  plain = dataclasses.replace(request.without_activation(out_dtype), config=None)
  return sum_shared(matmul(plain, x, y, None), like)


matmul.defvjp(_forward, _backward)
