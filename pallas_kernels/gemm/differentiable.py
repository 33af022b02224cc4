"""The products that JAX's transformations see: batching around `run`, and matmul's gradient."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import activations
from pallas_kernels.batching import batch_of, batched, sum_shared
from pallas_kernels.dtypes import accumulator_dtype, round_once
from pallas_kernels.gemm import implementations
from pallas_kernels.gemm.operands import Operands, Transposes
from pallas_kernels.gemm.request import GemmRequest


def run_batched(request: GemmRequest, operands: Operands) -> jax.Array:
  """`implementations.run`, with vmap as more batch, or as more rows where only A is mapped."""
  structure: Any = jax.tree.structure(operands)
  # every pair's A
  with_rows = (0, *range(structure.num_leaves - 2 * len(operands.added), structure.num_leaves, 2))

  def run(*flat: jax.Array) -> jax.Array:
    return implementations.run(request, jax.tree.unflatten(structure, flat))

  def as_rows(*flat: jax.Array) -> jax.Array | None:
    a = flat[0]
    if request.transposes.a or operands.per_row:
      return None
    # of no columns a number of rows cannot be inferred
    folded = (
      x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1]) if place in with_rows else x
      for place, x in enumerate(flat)
    )
    out = batched(run, *folded, rows=as_rows, with_rows=with_rows)
    return out.reshape(*a.shape[:-1], out.shape[-1])

  return batched(run, *jax.tree.leaves(operands), rows=as_rows, with_rows=with_rows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def matmul(request: GemmRequest, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
  """epilogue(A·B + bias) on [batch or 1, M, K], [batch or 1, K, N], [batch or 1, N].

  A and B may be stored transposed, as `request.transposes` says.
  """
  return run_batched(request, Operands(a, (b,), (), () if bias is None else (bias,)))


def _forward(
  request: GemmRequest, a: jax.Array, b: jax.Array, bias: jax.Array | None
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
  s = matmul(request.plain(epilogue.settled_dtype), a, b, bias)
  out = activations.apply(epilogue.activation, s.astype(accumulator_dtype(s.dtype)))
  return round_once(out, epilogue.out_dtype), (a, b, bias, s)


def _backward(
  request: GemmRequest, residuals: tuple[Any, ...], d_out: jax.Array
) -> tuple[Any, ...]:
  """Gradients of out = round_out(act(s)), s = round_mid(A·B + bias).

      ds = d_out ⊙ act'(s);  dA = ds·Bᵀ;  dB = Aᵀ·ds;  dbias = Σ_rows ds

  Roundings count as the identity. ds is rounded to the operands' dtype, as the
  unfused program rounds it, and the products accumulate in float32.
  """
  a, b, bias, s = residuals
  d_s = d_out
  if request.epilogue.activation is not None:
    (s,) = as_stored((s,))
    wide = accumulator_dtype(a.dtype)
    slope = activations.derivative(request.epilogue.activation, s.astype(wide))
    d_s = d_out.astype(wide) * slope
  d_bias = None
  if bias is not None:
    d_bias = sum_shared(jnp.sum(d_s, axis=1, dtype=accumulator_dtype(d_s.dtype)), bias)
  d_s = round_once(d_s, a.dtype)
  return d_left(request, (d_s,), a, (b,)), d_right(request, d_s, a, b), d_bias


def as_stored(stored: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
  """What the forward pass stored, to XLA numbers like any others.

  Otherwise it finds the activation in both passes, and has the forward one store
  it in float32: at 1024 x 4096 x 12288 of gated_matmul 48 MiB to write and read,
  some 25 us of 873 on an H200, where computing it again costs nothing beside its
  operands.
  """
  behind: tuple[jax.Array, ...] = lax.optimization_barrier(stored)
  return behind


def d_left(
  request: GemmRequest, d_s: tuple[jax.Array, ...], a: jax.Array, bs: tuple[jax.Array, ...]
) -> jax.Array:
  """The gradient of A, stored as A is: Σ ds·Bᵀ over what A is multiplied with, or Σ B·dsᵀ."""
  return _product(of_left(request, d_s, a, bs), a)


def d_right(request: GemmRequest, d_s: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
  """The gradient of B, stored as B is: Aᵀ·ds, or its transpose dsᵀ·A."""
  return _product(of_right(request, d_s, a, b), b)


class GradientProduct(NamedTuple):
  """Σ x·y over pairs of arrays, or of their shapes, and what asks for it."""

  request: GemmRequest
  xs: tuple[Any, ...]
  ys: tuple[Any, ...]


def of_left(
  request: GemmRequest, d_s: tuple[Any, ...], a: Any, bs: tuple[Any, ...]
) -> GradientProduct:
  """The product that `d_left` runs."""
  stored = request.transposes
  if stored.a:
    return _planned(request, bs, d_s, Transposes(a=stored.b, b=True), like=a)
  return _planned(request, d_s, bs, Transposes(b=not stored.b), like=a)


def of_right(request: GemmRequest, d_s: Any, a: Any, b: Any) -> GradientProduct:
  """The product that `d_right` runs."""
  stored = request.transposes
  if stored.b:
    return _planned(request, (d_s,), (a,), Transposes(a=True, b=stored.a), like=b)
  return _planned(request, (a,), (d_s,), Transposes(a=not stored.a), like=b)


def _planned(
  request: GemmRequest,
  xs: tuple[Any, ...],
  ys: tuple[Any, ...],
  transposes: Transposes,
  *,
  like: Any,
) -> GradientProduct:
  """Σ x·y, stored as `transposes` says, for the gradient of `like`, planned for its own shape."""
  shared = like.shape[0] == 1 and batch_of(*xs, *ys) != 1
  # a gradient summed over the batch is summed before it is rounded
  out_dtype = accumulator_dtype(like.dtype) if shared else like.dtype
  return GradientProduct(request.for_gradient(out_dtype, transposes, pairs=len(xs)), xs, ys)


def _product(product: GradientProduct, like: jax.Array) -> jax.Array:
  """The gradient of `like`."""
  wanted, xs, ys = product
  if len(xs) == 1:
    return sum_shared(matmul(wanted, *xs, *ys, None), like)
  return sum_shared(summed(wanted, xs, ys), like)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def summed(request: GemmRequest, xs: tuple[jax.Array, ...], ys: tuple[jax.Array, ...]) -> jax.Array:
  """Σ x·y over pairs, summed in one accumulator where a kernel does that and rounded once."""
  return run_batched(request, Operands.of_pairs(xs, ys))


def _summed_forward(
  request: GemmRequest, xs: tuple[jax.Array, ...], ys: tuple[jax.Array, ...]
) -> tuple[jax.Array, tuple[Any, ...]]:
  return summed(request, xs, ys), (xs, ys)


def _summed_backward(
  request: GemmRequest, residuals: tuple[Any, ...], d_out: jax.Array
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
  """The gradients of each pair, as if it were the only one."""
  xs, ys = residuals
  d_s = round_once(d_out, xs[0].dtype)
  pairs = tuple(zip(xs, ys, strict=True))
  return (
    tuple(d_left(request, (d_s,), x, (y,)) for x, y in pairs),
    tuple(d_right(request, d_s, x, y) for x, y in pairs),
  )


matmul.defvjp(_forward, _backward)
summed.defvjp(_summed_forward, _summed_backward)
