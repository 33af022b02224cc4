"""Gradients of the products and of the row-wise ops, in float64.

Every stage is float64 and nothing is rounded in between: what the errors of a
backward kernel are measured against. Each function takes the gradient with
respect to the op's result and returns those with respect to its operands, in
their order and of their shapes.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reference.activations import Activation, activate, activation_derivative, check_activation
from reference.formats import Float64Array, to_float64
from reference.ops import matmul_exact, result_shape
from reference.rowwise.inverse_rms import inverse_rms


class MatmulGradients(NamedTuple):
  """Gradients of act(A·B + bias)."""

  a: Float64Array
  b: Float64Array
  bias: Float64Array | None


class GatedMatmulGradients(NamedTuple):
  """Gradients of act(X·G) ⊙ (X·U)."""

  x: Float64Array
  w_gate: Float64Array
  w_up: Float64Array


class SwigluGradients(NamedTuple):
  """Gradients of silu(gate) ⊙ up."""

  gate: Float64Array
  up: Float64Array


class RmsNormGradients(NamedTuple):
  """Gradients of the RMS normalisation."""

  x: Float64Array
  weight: Float64Array


def summed_to(gradient: Float64Array, shape: tuple[int, ...]) -> Float64Array:
  """Adds up the dimensions along which an operand of `shape` was broadcast."""
  extra = tuple(range(gradient.ndim - len(shape)))
  total = gradient.sum(axis=extra)
  repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and total.shape[axis] != 1)
  return np.asarray(total.sum(axis=repeated, keepdims=True))


def _result_gradient(d_out: npt.ArrayLike, shape: tuple[int, ...]) -> Float64Array:
  """`d_out` in float64.

  Raises:
    ValueError: its shape is not that of the result.
  """
  gradient = to_float64(d_out, name="d_out")
  if gradient.shape != shape:
    raise ValueError(f"d_out.shape={gradient.shape}: expected {shape}, the shape of the result")
  return gradient


def _product_gradients(
  a: Float64Array, b: Float64Array, d_s: Float64Array
) -> tuple[Float64Array, Float64Array]:
  """Gradients of S = A·B: dS·Bᵀ and Aᵀ·dS, summed over broadcast dimensions."""
  with np.errstate(invalid="ignore", over="ignore"):
    d_a = np.matmul(d_s, np.swapaxes(b, -1, -2))
    d_b = np.matmul(np.swapaxes(a, -1, -2), d_s)
  return summed_to(d_a, a.shape), summed_to(d_b, b.shape)


def matmul_gradients(
  a: npt.ArrayLike,
  b: npt.ArrayLike,
  d_out: npt.ArrayLike,
  *,
  bias: npt.ArrayLike | None = None,
  activation: Activation | None = None,
) -> MatmulGradients:
  """Gradients of act(S), S = A·B + bias.

      dS = d_out ⊙ act'(S),    dA = dS·Bᵀ,    dB = Aᵀ·dS,    dbias = Σ_rows dS

  Args:
    a: [..., M, K].
    b: [..., K, N].
    d_out: [..., M, N].
    bias: As in `reference.matmul`.
    activation: None or "silu".

  Raises:
    ValueError: a shape, a dtype or the activation is wrong.
  """
  check_activation(activation)
  first, second = to_float64(a, name="a"), to_float64(b, name="b")
  offset = None if bias is None else to_float64(bias, name="bias")
  d_s = _result_gradient(d_out, result_shape(first, second, offset))
  if activation is not None:
    with np.errstate(invalid="ignore", over="ignore"):
      d_s = d_s * activation_derivative(matmul_exact(first, second, bias=offset), activation)
  d_a, d_b = _product_gradients(first, second, d_s)
  return MatmulGradients(d_a, d_b, None if offset is None else summed_to(d_s, offset.shape))


def gated_matmul_gradients(
  x: npt.ArrayLike,
  w_gate: npt.ArrayLike,
  w_up: npt.ArrayLike,
  d_out: npt.ArrayLike,
  *,
  activation: Activation | None = "silu",
) -> GatedMatmulGradients:
  """Gradients of act(X·G) ⊙ (X·U).

      dP = d_out ⊙ (X·U) ⊙ act'(X·G),    dQ = d_out ⊙ act(X·G)
      dX = dP·Gᵀ + dQ·Uᵀ,    dG = Xᵀ·dP,    dU = Xᵀ·dQ

  Args:
    x: [..., M, K].
    w_gate: G, [..., K, N].
    w_up: U, the shape of `w_gate`.
    d_out: [..., M, N].
    activation: "silu" or None.

  Raises:
    ValueError: a shape, a dtype or the activation is wrong.
  """
  check_activation(activation)
  rows, gate, up = (
    to_float64(v, name=n) for v, n in ((x, "x"), (w_gate, "w_gate"), (w_up, "w_up"))
  )
  if gate.shape != up.shape:
    raise ValueError(f"w_up.shape={up.shape}: expected {gate.shape}, the shape of w_gate")
  gradient = _result_gradient(d_out, result_shape(rows, gate, names=("x", "w_gate")))
  p, q = matmul_exact(rows, gate), matmul_exact(rows, up)
  with np.errstate(invalid="ignore", over="ignore"):
    d_p = gradient * q
    if activation is not None:
      d_p = d_p * activation_derivative(p, activation)
    d_q = gradient * activate(p, activation)
  x_gate, d_gate = _product_gradients(rows, gate, d_p)
  x_up, d_up = _product_gradients(rows, up, d_q)
  return GatedMatmulGradients(x_gate + x_up, d_gate, d_up)


def swiglu_gradients(
  gate: npt.ArrayLike, up: npt.ArrayLike, d_out: npt.ArrayLike
) -> SwigluGradients:
  """Gradients of silu(gate) ⊙ up.

      dgate = d_out ⊙ up ⊙ silu'(gate),    dup = d_out ⊙ silu(gate)

  Args:
    gate: Any shape.
    up: Of the shape of `gate`, as `d_out`.
    d_out: Gradient with respect to the result.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  first, second = to_float64(gate, name="gate"), to_float64(up, name="up")
  if first.shape != second.shape:
    raise ValueError(f"up.shape={second.shape}: expected {first.shape}, the shape of gate")
  gradient = _result_gradient(d_out, first.shape)
  with np.errstate(invalid="ignore", over="ignore", under="ignore"):
    return SwigluGradients(
      gradient * second * activation_derivative(first, "silu"), gradient * activate(first, "silu")
    )


def rms_norm_gradients(
  x: npt.ArrayLike,
  weight: npt.ArrayLike,
  d_out: npt.ArrayLike,
  *,
  eps: float = 1e-6,
  weight_offset: float = 0.0,
) -> RmsNormGradients:
  """Gradients of x·r·(weight + offset), r = (mean(x²) + eps)^(-1/2).

      g = d_out ⊙ (weight + offset),    dx = r·g - x·r³·mean(g ⊙ x)
      dweight = Σ_rows d_out ⊙ x·r

  Args:
    x: [..., columns].
    weight: [columns].
    d_out: Of the shape of `x`.
    eps: As in `reference.rms_norm`.
    weight_offset: As in `reference.rms_norm`.

  Raises:
    ValueError: a shape or a dtype is wrong.
  """
  rows, scale = to_float64(x, name="x"), to_float64(weight, name="weight")
  if not rows.ndim or scale.shape != rows.shape[-1:]:
    raise ValueError(f"weight.shape={scale.shape}: expected {rows.shape[-1:]}, the last of x")
  gradient = _result_gradient(d_out, rows.shape)
  r = inverse_rms(rows, eps=eps)
  with np.errstate(invalid="ignore", over="ignore", under="ignore"):
    g = gradient * (scale + weight_offset)
    normalised = rows * r
    along = np.sum(g * normalised, axis=-1, keepdims=True) / max(rows.shape[-1], 1)
    d_x = r * (g - normalised * along)
    d_weight = (gradient * normalised).reshape(-1, scale.size).sum(axis=0)
  return RmsNormGradients(d_x, d_weight)
