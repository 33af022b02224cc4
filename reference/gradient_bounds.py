"""What float32 backward kernels may give: the gradients of `reference.gradients` with bounds.

Each function returns a `Bounded` for each operand, in float32 and not rounded
to anything yet: `assert_within(d_a, bounds.a.round(dtype))` judges a kernel.
The exact values are those of `reference.gradients`, so the roundings of
gradients between two kernels, to the operands' dtype, count as error here.
(`Bounded.quantize` makes them a part of the definition instead.)
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reference.accumulation import UNIT_ROUNDOFF, Accumulate
from reference.activations import (
  Activation,
  check_activation,
  silu_derivative,
  silu_derivative_error_bound,
)
from reference.bounded import Bounded
from reference.bounded_arrays import bounded_sum, joined, moved, negated, transposed
from reference.products import bounded_matmul
from reference.rowwise.inverse_rms import bounded_inverse_rms, bounded_normalised
from reference.rowwise.rows import as_rows

_U32 = UNIT_ROUNDOFF["ieee"]


class BoundedMatmulGradients(NamedTuple):
  """What the gradients of act(A·B + bias) may be."""

  a: Bounded
  b: Bounded
  bias: Bounded | None


class BoundedGatedMatmulGradients(NamedTuple):
  """What the gradients of act(X·G) ⊙ (X·U) may be."""

  x: Bounded
  w_gate: Bounded
  w_up: Bounded


class BoundedSwigluGradients(NamedTuple):
  """What the gradients of silu(gate) ⊙ up may be."""

  gate: Bounded
  up: Bounded


class BoundedRmsNormGradients(NamedTuple):
  """What the gradients of the RMS normalisation may be."""

  x: Bounded
  weight: Bounded


def bounded_silu_derivative(x: Bounded) -> Bounded:
  """silu'(x) evaluated in float32: e = `silu_derivative_error_bound`(x, e_x).

  Where v may be infinite silu' is 1 or 0 there, which differs from silu'(x) by
  less than 1.1.
  """
  exact = silu_derivative(x.exact)
  with np.errstate(invalid="ignore"):
    error = silu_derivative_error_bound(x.exact, x.error)
  error = np.where(x.may_overflow, np.maximum(error, 1.1), error)
  error = np.where(np.isfinite(x.exact), error, 0.0)
  return Bounded(exact, error, np.zeros(exact.shape, np.bool_), x.unbounded)


def bounded_matmul_gradients(
  a: npt.ArrayLike,
  b: npt.ArrayLike,
  d_out: npt.ArrayLike,
  *,
  bias: npt.ArrayLike | None = None,
  activation: Activation | None = None,
  intermediate_dtype: npt.DTypeLike | None = None,
  accumulate: Accumulate = "ieee",
  flush_subnormals: bool = True,
) -> BoundedMatmulGradients:
  """Gradients of act(S), S = A·B + bias, as float32 kernels compute them.

      dS = d_out ⊙ act'(round(S)), rounded to the dtype of A
      dA = dS·Bᵀ,    dB = Aᵀ·dS,    dbias = Σ_rows of the unrounded dS

  S is rounded to `intermediate_dtype` as the forward pass rounds it. Without an
  activation dS is d_out.

  Args:
    a: [M, K]; leading dimensions are to be folded into M, or sliced.
    b: [K, N].
    d_out: [M, N], float32 or narrower.
    bias: [N] or None.
    activation: None or "silu".
    intermediate_dtype: As in `reference.matmul`; None: the dtype of `a`.
    accumulate: As in `matmul_error_bound`, for every product.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  check_activation(activation)
  first, second, upstream = np.asarray(a), np.asarray(b), np.asarray(d_out)
  _two_dimensions(a=first, b=second, d_out=upstream)
  flush = flush_subnormals
  left, right, d_s = (Bounded.of(x, flush_subnormals=flush) for x in (first, second, upstream))
  if activation is not None:
    s = bounded_matmul(left, right, accumulate=accumulate, flush_subnormals=flush)
    if bias is not None:
      s = s.add(Bounded.of(bias, flush_subnormals=flush, name="bias"), flush_subnormals=flush)
    s = s.round(first.dtype if intermediate_dtype is None else intermediate_dtype)
    d_s = d_s.multiply(bounded_silu_derivative(s), flush_subnormals=flush)
  d_bias = None if bias is None else bounded_sum(d_s, axis=0, flush_subnormals=flush)
  stored = d_s.round(first.dtype)
  return BoundedMatmulGradients(
    bounded_matmul(stored, transposed(right), accumulate=accumulate, flush_subnormals=flush),
    bounded_matmul(transposed(left), stored, accumulate=accumulate, flush_subnormals=flush),
    d_bias,
  )


def bounded_gated_matmul_gradients(
  x: npt.ArrayLike,
  w_gate: npt.ArrayLike,
  w_up: npt.ArrayLike,
  d_out: npt.ArrayLike,
  *,
  activation: Activation | None = "silu",
  intermediate_dtype: npt.DTypeLike | None = None,
  accumulate: Accumulate = "ieee",
  flush_subnormals: bool = True,
) -> BoundedGatedMatmulGradients:
  """Gradients of act(X·G) ⊙ (X·U) as float32 kernels compute them.

      dP = d_out ⊙ u ⊙ act'(g),    dQ = d_out ⊙ act(g),    rounded to the dtype of X
      dX = [dP dQ]·[G U]ᵀ,    dG = Xᵀ·dP,    dU = Xᵀ·dQ

  with g and u rounded to `intermediate_dtype` as the forward pass rounds them.
  dX is one float32 sum over both products, in any order; two sums that are
  rounded before they are added are more than this allows.

  Args:
    x: [M, K]; leading dimensions are to be folded into M.
    w_gate: [K, N].
    w_up: [K, N].
    d_out: [M, N], float32 or narrower.
    activation: "silu" or None.
    intermediate_dtype: As in `reference.gated_matmul`; None: the dtype of `x`.
    accumulate: As in `matmul_error_bound`, for every product.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  check_activation(activation)
  rows, gate_array, up_array, upstream = (np.asarray(v) for v in (x, w_gate, w_up, d_out))
  _two_dimensions(x=rows, w_gate=gate_array, w_up=up_array, d_out=upstream)
  flush = flush_subnormals
  left, w_g, w_u, d = (
    Bounded.of(v, flush_subnormals=flush) for v in (rows, gate_array, up_array, upstream)
  )
  stored = rows.dtype if intermediate_dtype is None else intermediate_dtype
  g, u = (
    bounded_matmul(left, w, accumulate=accumulate, flush_subnormals=flush).round(stored)
    for w in (w_g, w_u)
  )
  d_p = d.multiply(u, flush_subnormals=flush)
  activated = g
  if activation is not None:
    d_p = d_p.multiply(bounded_silu_derivative(g), flush_subnormals=flush)
    activated = g.activate(activation)
  d_q = d.multiply(activated, flush_subnormals=flush)
  d_p, d_q = d_p.round(rows.dtype), d_q.round(rows.dtype)
  weights = transposed(joined(w_g, w_u, axis=1))
  columns = transposed(left)
  return BoundedGatedMatmulGradients(
    bounded_matmul(
      joined(d_p, d_q, axis=1), weights, accumulate=accumulate, flush_subnormals=flush
    ),
    bounded_matmul(columns, d_p, accumulate=accumulate, flush_subnormals=flush),
    bounded_matmul(columns, d_q, accumulate=accumulate, flush_subnormals=flush),
  )


def _two_dimensions(**arrays: npt.NDArray[np.generic]) -> None:
  """Raises ValueError unless all have two dimensions."""
  for name, array in arrays.items():
    if array.ndim != 2:
      raise ValueError(f"{name}.shape={array.shape}: expected 2 dimensions; fold the leading ones")


def bounded_swiglu_gradients(
  gate: npt.ArrayLike,
  up: npt.ArrayLike,
  d_out: npt.ArrayLike,
  *,
  flush_subnormals: bool = True,
) -> BoundedSwigluGradients:
  """Gradients of silu(gate) ⊙ up evaluated in float32.

      dgate = d_out ⊙ up ⊙ silu'(gate),    dup = d_out ⊙ silu(gate)

  Args:
    gate: float32 or narrower, any shape, as the next two.
    up: Of the shape of `gate`.
    d_out: Of the shape of `gate`.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  flush = flush_subnormals
  g, u, d = (
    Bounded.of(v, flush_subnormals=flush, name=n)
    for v, n in ((gate, "gate"), (up, "up"), (d_out, "d_out"))
  )
  for name, found in (("up", u), ("d_out", d)):
    if found.exact.shape != g.exact.shape:
      raise ValueError(f"{name}.shape={found.exact.shape}: expected {g.exact.shape}")
  return BoundedSwigluGradients(
    d.multiply(u, flush_subnormals=flush).multiply(
      bounded_silu_derivative(g), flush_subnormals=flush
    ),
    d.multiply(g.silu(), flush_subnormals=flush),
  )


def bounded_rms_norm_gradients(
  x: npt.ArrayLike,
  weight: npt.ArrayLike,
  d_out: npt.ArrayLike,
  *,
  eps: float = 1e-6,
  weight_offset: float = 0.0,
  accumulation_chunk: int | None = None,
  flush_subnormals: bool = True,
) -> BoundedRmsNormGradients:
  """Gradients of x·r·(weight + offset), r = (mean(x²) + eps)^(-1/2), evaluated in float32.

      g = d_out ⊙ (weight + offset),    n = x·r,    c = mean(g ⊙ n)
      dx = (g - n·c)·r,    dweight = Σ_rows d_out ⊙ n, in any order

  dx has 4·2^-24·(|g| + |n·c|)·r more, for kernels that group the factors of r
  in another way.

  Args:
    x: [..., columns], float32 or narrower.
    weight: [columns].
    d_out: Of the shape of `x`.
    eps: As in `reference.rms_norm`.
    weight_offset: As in `reference.rms_norm`.
    accumulation_chunk: Width of a segment of a row; see `accumulation_depth`.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  flush = flush_subnormals
  rows, d = (
    Bounded.of(x, flush_subnormals=flush, name="x"),
    Bounded.of(d_out, flush_subnormals=flush, name="d_out"),
  )
  factor = Bounded.of(weight, flush_subnormals=flush, name="weight")
  columns = rows.exact.shape[-1:]
  if factor.exact.shape != columns or d.exact.shape != rows.exact.shape:
    raise ValueError(
      f"weight.shape={factor.exact.shape}, d_out.shape={d.exact.shape}: expected {columns} and "
      f"{rows.exact.shape}"
    )
  if weight_offset:
    stored = float(np.float32(weight_offset))
    offset = Bounded.within(weight_offset, abs(stored - weight_offset))
    factor = factor.add(offset, flush_subnormals=flush)
  r = bounded_inverse_rms(
    rows, eps=eps, accumulation_chunk=accumulation_chunk, flush_subnormals=flush
  )
  n = bounded_normalised(
    rows, eps=eps, accumulation_chunk=accumulation_chunk, flush_subnormals=flush
  )
  g = d.multiply(factor, flush_subnormals=flush)
  width = max(columns[0], 1)
  share = Bounded.within(1.0 / width, 2.0 * _U32 / width)
  c = bounded_sum(
    g.multiply(n, flush_subnormals=flush),
    keepdims=True,
    accumulation_chunk=accumulation_chunk,
    flush_subnormals=flush,
  ).multiply(share, flush_subnormals=flush)
  correction = n.multiply(c, flush_subnormals=flush)
  d_x = g.add(negated(correction), flush_subnormals=flush).multiply(r, flush_subnormals=flush)
  with np.errstate(invalid="ignore", over="ignore"):
    regrouped = 4.0 * _U32 * (np.abs(g.exact) + np.abs(correction.exact)) * r.exact
  error = d_x.error + np.where(np.isfinite(regrouped) & np.isfinite(d_x.exact), regrouped, 0.0)
  d_weight = d.multiply(n, flush_subnormals=flush)
  return BoundedRmsNormGradients(
    dataclasses.replace(d_x, error=error),
    bounded_sum(moved(d_weight, as_rows), axis=0, flush_subnormals=flush),
  )
