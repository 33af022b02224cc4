"""The row-wise ops that JAX's transformations see: batching around `run`, and gradients."""

import dataclasses
import functools
from typing import Any

import jax

from pallas_kernels.batching import batched
from pallas_kernels.rowwise import implementations
from pallas_kernels.rowwise.request import RowOperands, RowRequest
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.specs import RmsNorm, SwigluGradient

Arrays = tuple[jax.Array, ...]

# Of the transpose: it takes rows of 16·n bytes, and what it is for gives rows of other sizes.
_HOPPER = ("mosaic_gpu", "mosaic_gpu_interpret")


def run_batched(request: RowRequest, matrices: Arrays, others: Arrays = ()) -> Arrays:
  """`implementations.run`, with vmap as more batch."""

  def run(*flat: jax.Array) -> Arrays:
    cut = len(matrices)
    return implementations.run(request, RowOperands(flat[:cut], flat[cut:]))

  return batched(run, *matrices, *others)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def without_gradient(request: RowRequest, advice: str, matrices: Arrays, others: Arrays) -> Arrays:
  """`run_batched` of what cannot be differentiated, and says so."""
  del advice
  return run_batched(request, matrices, others)


@without_gradient.defjvp
def _no_gradient(request: RowRequest, advice: str, primals: Any, tangents: Any) -> Any:
  del primals, tangents
  raise NotImplementedError(f"{request.op} {advice}")


_CODES = (
  "has no gradient: codes are steps. jax.lax.stop_gradient of its operands takes it out of the "
  "differentiation"
)
_SECOND = "has first derivatives only: its gradient's kernel cannot be differentiated again"


def quantize(request: RowRequest, matrices: Arrays, others: Arrays = ()) -> Arrays:
  """An op that gives codes."""
  return without_gradient(request, _CODES, matrices, others)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def swiglu(request: RowRequest, gate: jax.Array, up: jax.Array) -> jax.Array:
  """silu(gate)·up of [batch or 1, rows, columns] each."""
  (out,) = run_batched(request, (gate, up))
  return out


def _swiglu_forward(
  request: RowRequest, gate: jax.Array, up: jax.Array
) -> tuple[jax.Array, Arrays]:
  return swiglu(request, gate, up), (gate, up)


def _swiglu_backward(request: RowRequest, residuals: Arrays, d_out: jax.Array) -> Arrays:
  """Both gradients in one pass; silu(gate) is computed again, storing it would cost a pass."""
  gate, up = residuals
  gradient = request.for_gradient(SwigluGradient(request.dtype))
  d_gate, d_up = without_gradient(gradient, _SECOND, (gate, up, d_out), ())
  return d_gate, d_up


swiglu.defvjp(_swiglu_forward, _swiglu_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def rms_norm(
  request: RowRequest, x: jax.Array, residual: jax.Array | None, weight: jax.Array
) -> Arrays:
  """(y,), or (y, x + residual): x [batch or 1, rows, columns], weight [batch or 1, 1, columns]."""
  return run_batched(request, (x,) if residual is None else (x, residual), (weight,))


def rms_norm_gradient(request: RowRequest, weight_dtype: Any) -> RowRequest:
  """What computes the gradients of a request of `rms_norm`."""
  spec: RmsNorm = request.spec
  return request.for_gradient(
    RmsNormGradient(
      spec.eps,
      spec.weight_offset,
      request.dtype,
      weight_dtype,
      spec.out_dtype,
      sum_gradient=spec.sum_dtype is not None,
    )
  )


def _rms_norm_forward(
  request: RowRequest, x: jax.Array, residual: jax.Array | None, weight: jax.Array
) -> tuple[Arrays, tuple[jax.Array, jax.Array]]:
  outs = rms_norm(request, x, residual, weight)
  # the gradient of y needs the row that was normalised and nothing else
  return outs, (x if residual is None else outs[1], weight)


def _rms_norm_backward(
  request: RowRequest, residuals: tuple[jax.Array, jax.Array], d_outs: Arrays
) -> tuple[Any, ...]:
  x, weight = residuals
  gradient = rms_norm_gradient(request, weight.dtype)
  # d_outs has the gradient of x + residual, too, where that is a result
  d_x, d_weight = without_gradient(gradient, _SECOND, (x, *d_outs), (weight,))
  return d_x, (d_x if gradient.spec.sum_gradient else None), d_weight


rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def transpose(request: RowRequest, x: jax.Array) -> jax.Array:
  """[batch, columns, rows] of x [batch, rows, columns]."""
  (out,) = run_batched(request, (x,))
  return out


def _transpose_forward(request: RowRequest, x: jax.Array) -> tuple[jax.Array, None]:
  return transpose(request, x), None


def _transpose_backward(request: RowRequest, residuals: None, d_out: jax.Array) -> tuple[jax.Array]:
  """The transpose of d_out, whose rows are not those that the Hopper kernel was asked for."""
  del residuals
  gradient = request.for_gradient(request.spec)
  if request.implementation in _HOPPER:
    gradient = dataclasses.replace(gradient, implementation=None)
  return (transpose(gradient, d_out),)


transpose.defvjp(_transpose_forward, _transpose_backward)
