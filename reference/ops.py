"""The definition of `matmul` that every kernel follows, in float64.

Two paths, and what each is for:

- `matmul_exact`: float64 in every stage, nothing rounded in between. Errors
  are measured against it, and error bounds hold against it.
- `matmul`: the same stages with the roundings that the definition asks for.
  Where all sums are exact (small integers) a kernel has to match it bit for
  bit.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from reference.activations import Activation, activate, check_activation
from reference.formats import Float64Array, float_format, to_float64
from reference.rounding import round_to


def result_shape(
  a: npt.NDArray[Any],
  b: npt.NDArray[Any],
  bias: npt.NDArray[Any] | None = None,
  *,
  names: tuple[str, str] = ("a", "b"),
) -> tuple[int, ...]:
  """Shape of A·B + bias with leading batch dimensions broadcast; `names` are for errors.

  Raises:
    ValueError: a shape does not fit.
  """
  first, second = names
  for name, operand in ((first, a), (second, b)):
    if operand.ndim < 2:
      raise ValueError(f"{name}.shape={operand.shape}: expected at least 2 dimensions")
  if a.shape[-1] != b.shape[-2]:
    raise ValueError(
      f"{second}.shape={b.shape}: expected {a.shape[-1]} rows, the columns of {first} with shape "
      f"{a.shape}"
    )
  try:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
  except ValueError:
    raise ValueError(
      f"{second}.shape={b.shape}: leading dimensions {b.shape[:-2]} do not broadcast with "
      f"{a.shape[:-2]} of {first}"
    ) from None
  shape = (*batch, a.shape[-2], b.shape[-1])
  if bias is not None:
    try:
      fits = np.broadcast_shapes(shape, bias.shape) == shape
    except ValueError:
      fits = False
    if not fits:
      raise ValueError(
        f"bias.shape={bias.shape}: expected ({shape[-1]},) or a shape that broadcasts to {shape}"
      )
  return shape


def _linear(a: npt.ArrayLike, b: npt.ArrayLike, bias: npt.ArrayLike | None) -> Float64Array:
  """A·B + bias in float64."""
  a, b = np.asarray(a), np.asarray(b)
  bias = None if bias is None else np.asarray(bias)
  result_shape(a, b, bias)
  # NaN and infinite operands are legitimate; their products are no reason to warn
  with np.errstate(invalid="ignore", over="ignore"):
    total = np.matmul(to_float64(a, name="a"), to_float64(b, name="b"))
    if bias is not None:
      total += to_float64(bias, name="bias")
  return total


def matmul_exact(
  a: npt.ArrayLike,
  b: npt.ArrayLike,
  *,
  bias: npt.ArrayLike | None = None,
  activation: Activation | None = None,
) -> Float64Array:
  """act(A·B + bias) with every stage in float64: what errors are measured against.

  Operands are taken at their values, whatever their dtype. The float64 sum
  itself is off by at most γ_K(2^-53)·|A|·|B|, which `matmul_error_bound`
  includes.

  Args:
    a: [..., M, K], any supported float dtype or integers.
    b: [..., K, N]; leading dimensions broadcast as in `numpy.matmul`.
    bias: [N], or anything that broadcasts to the result.
    activation: None or "silu".

  Returns:
    float64 [..., M, N]; zeros (plus bias) where K = 0.

  Raises:
    ValueError: a shape, a dtype or the activation is wrong.
  """
  check_activation(activation)
  return activate(_linear(a, b, bias), activation)


def matmul(
  a: npt.ArrayLike,
  b: npt.ArrayLike,
  *,
  bias: npt.ArrayLike | None = None,
  activation: Activation | None = None,
  intermediate_dtype: npt.DTypeLike | None = None,
  out_dtype: npt.DTypeLike | None = None,
) -> npt.NDArray[Any]:
  """act(A·B + bias), rounded where the definition rounds.

      s = A·B + bias                                    (unrounded)
      t = round(s, intermediate_dtype or out_dtype)     (only before an activation)
      y = act(t)
      out = round(y, out_dtype)

  `round` is to nearest even, in one step. The bias is added before any
  rounding, as a fused linear layer adds it to its float32 accumulator. t is
  rounded to the output dtype by default because that is what a program of two
  kernels stores in between; `intermediate_dtype=float32` hands the
  accumulator to the activation as it is. Without an activation there is
  nothing in between and `intermediate_dtype` has no effect.

  A kernel that computes s and act in float32 differs from this by what
  `matmul_error_bound` bounds, and by nothing where its float32 sums are exact
  and there is no activation.

  Args:
    a: [..., M, K], any supported float dtype or integers.
    b: [..., K, N]; leading dimensions broadcast as in `numpy.matmul`.
    bias: [N], or anything that broadcasts to the result.
    activation: None or "silu".
    intermediate_dtype: Dtype of t. None: `out_dtype`.
    out_dtype: Dtype of the result. None: float64, that is no rounding. (The
      kernels' default is the operands' dtype; a reference that rounded unasked
      would hide errors.)

  Returns:
    [..., M, N] in `out_dtype`, or float64; zeros (plus bias) where K = 0.

  Raises:
    ValueError: a shape, a dtype or the activation is wrong.
  """
  check_activation(activation)
  for name, dtype in (("intermediate_dtype", intermediate_dtype), ("out_dtype", out_dtype)):
    if dtype is not None:
      float_format(dtype, name=name)
  total = _linear(a, b, bias)
  if activation is not None:
    stored = out_dtype if intermediate_dtype is None else intermediate_dtype
    if stored is not None:
      total = round_to(total, stored).astype(np.float64)
    total = activate(total, activation)
  return total if out_dtype is None else round_to(total, out_dtype)
