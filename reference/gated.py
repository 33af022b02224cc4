"""The gated product act(X·G) ⊙ (X·U): its definition, error bound and check."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.accumulation import Accumulate
from reference.activations import Activation, activate, check_activation
from reference.bounded import Bounded, operand_format
from reference.compare import result_blocks
from reference.formats import Float64Array, FloatFormat, float_format
from reference.judge import Block, ErrorCheck, assert_passed, asserting, check_blocks
from reference.ops import matmul, matmul_exact, result_shape
from reference.products import ProductModel
from reference.rounding import round_to


def _gated_shape(
  x: npt.NDArray[Any], w_gate: npt.NDArray[Any], w_up: npt.NDArray[Any]
) -> tuple[int, ...]:
  """Shape of the gated product.

  Raises:
    ValueError: a shape does not fit.
  """
  if w_gate.shape != w_up.shape:
    raise ValueError(f"w_up.shape={w_up.shape}: expected {w_gate.shape}, the shape of w_gate")
  return result_shape(x, w_gate, names=("x", "w_gate"))


def gated_matmul_exact(
  x: npt.ArrayLike,
  w_gate: npt.ArrayLike,
  w_up: npt.ArrayLike,
  *,
  activation: Activation | None = "silu",
) -> Float64Array:
  """act(X·G) ⊙ (X·U) with every stage in float64: what errors are measured against.

  Args:
    x: [..., M, K], any supported float dtype or integers.
    w_gate: G, [..., K, N]; leading dimensions broadcast.
    w_up: U, the shape of `w_gate`.
    activation: "silu", or None for the product of the two.

  Returns:
    float64 [..., M, N]; zeros where K = 0.

  Raises:
    ValueError: a shape, a dtype or the activation is wrong.
  """
  _gated_shape(np.asarray(x), np.asarray(w_gate), np.asarray(w_up))
  with np.errstate(invalid="ignore", over="ignore", under="ignore"):
    return matmul_exact(x, w_gate, activation=activation) * matmul_exact(x, w_up)


def gated_matmul(
  x: npt.ArrayLike,
  w_gate: npt.ArrayLike,
  w_up: npt.ArrayLike,
  *,
  activation: Activation | None = "silu",
  intermediate_dtype: npt.DTypeLike | None = None,
  out_dtype: npt.DTypeLike | None = None,
) -> npt.NDArray[Any]:
  """act(X·G) ⊙ (X·U), rounded where the definition rounds.

      g = round(X·G, intermediate_dtype or out_dtype)
      u = round(X·U, intermediate_dtype or out_dtype)
      out = round(act(g)·u, out_dtype)

  By default both products are rounded as a program of two matmul kernels and
  one elementwise kernel stores them. The elementwise kernel reads g and u,
  computes act(g)·u in float32 and rounds once: act(g) is not stored, so it is
  not rounded. (`swiglu` has an option for the program that does store it.)
  `intermediate_dtype=float32` hands both accumulators on as they are.

  Args:
    x: [..., M, K], any supported float dtype or integers.
    w_gate: G, [..., K, N]; leading dimensions broadcast.
    w_up: U, the shape of `w_gate`.
    activation: "silu", or None for the product of the two.
    intermediate_dtype: Dtype of g and u. None: `out_dtype`.
    out_dtype: Dtype of the result. None: float64, that is no rounding.

  Returns:
    [..., M, N] in `out_dtype`, or float64; zeros where K = 0.

  Raises:
    ValueError: a shape, a dtype or the activation is wrong.
  """
  check_activation(activation)
  _gated_shape(np.asarray(x), np.asarray(w_gate), np.asarray(w_up))
  if out_dtype is not None:
    float_format(out_dtype, name="out_dtype")
  if intermediate_dtype is not None:
    float_format(intermediate_dtype, name="intermediate_dtype")
  stored = out_dtype if intermediate_dtype is None else intermediate_dtype
  gate = activate(matmul(x, w_gate, out_dtype=stored), activation)
  with np.errstate(invalid="ignore", over="ignore", under="ignore"):
    result = gate * matmul(x, w_up, out_dtype=stored).astype(np.float64)
  return result if out_dtype is None else round_to(result, out_dtype)


@dataclasses.dataclass(frozen=True)
class GatedMatmulModel:
  """act(X·G) ⊙ (X·U) as a kernel computes it: the checked options of the bound."""

  product: ProductModel
  activation: Activation | None
  intermediate_format: FloatFormat
  out_format: FloatFormat

  @classmethod
  def create(
    cls,
    x: npt.NDArray[np.generic],
    w_gate: npt.NDArray[np.generic],
    w_up: npt.NDArray[np.generic],
    *,
    out_dtype: npt.DTypeLike,
    accumulation_chunk: int | None,
    accumulate: Accumulate,
    activation: Activation | None,
    intermediate_dtype: npt.DTypeLike | None,
    flush_subnormals: bool,
  ) -> "GatedMatmulModel":
    """Checks the options against the operands.

    Raises:
      ValueError: an option or dtype is one the bound does not cover.
    """
    check_activation(activation)
    x_format = operand_format("x", x.dtype)
    gate_format, up_format = (
      operand_format("w_gate", w_gate.dtype),
      operand_format("w_up", w_up.dtype),
    )
    if gate_format != up_format:
      raise ValueError(f"w_up.dtype={up_format.name}: expected {gate_format.name}, that of w_gate")
    out_format = float_format(out_dtype, name="out_dtype")
    return cls(
      product=ProductModel.create(
        x_format,
        gate_format,
        x.shape[-1],
        accumulation_chunk=accumulation_chunk,
        accumulate=accumulate,
        flush_subnormals=flush_subnormals,
      ),
      activation=activation,
      intermediate_format=(
        out_format
        if intermediate_dtype is None
        else float_format(intermediate_dtype, name="intermediate_dtype")
      ),
      out_format=out_format,
    )

  def evaluate(self, x: Bounded, w_gate: Bounded, w_up: Bounded) -> Bounded:
    """What the kernel may give for these operands, or for slices of them."""
    stored = self.intermediate_format.dtype
    gate = self.product.evaluate(x, w_gate).round(stored)
    if self.activation is not None:
      gate = gate.activate(self.activation)
    up = self.product.evaluate(x, w_up).round(stored)
    flush = self.product.flush_subnormals
    return gate.multiply(up, flush_subnormals=flush).round(self.out_format.dtype)


def gated_matmul_error_bound(
  x: npt.ArrayLike,
  w_gate: npt.ArrayLike,
  w_up: npt.ArrayLike,
  *,
  out_dtype: npt.DTypeLike,
  accumulation_chunk: int | None = None,
  accumulate: Accumulate = "ieee",
  activation: Activation | None = "silu",
  intermediate_dtype: npt.DTypeLike | None = None,
  flush_subnormals: bool = True,
) -> Float64Array:
  """Elementwise bound on |kernel - gated_matmul_exact(x, ...)| for float32 accumulation.

  The roundings are those of `reference.gated_matmul`: two sums
  (`bounded_matmul`), each rounded to the intermediate dtype
  (`Bounded.round`), the activation in float32 (`Bounded.silu`), a float32
  product (`Bounded.multiply`) and the rounding to `out_dtype`.

  Args:
    x: [..., M, K] float32, float16, bfloat16 or float8_e4m3fn.
    w_gate: [..., K, N], the same choice; leading dimensions broadcast.
    w_up: Shape and dtype of `w_gate`.
    out_dtype: Dtype of the kernel's result.
    accumulation_chunk: See `accumulation_depth`; None holds for every order.
    accumulate: As in `matmul_error_bound`.
    activation: "silu" or None.
    intermediate_dtype: As in `reference.gated_matmul`.
    flush_subnormals: Whether subnormal float32 values may be replaced by zero.

  Returns:
    float64 [..., M, N], as `matmul_error_bound`.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  operands = [np.asarray(operand) for operand in (x, w_gate, w_up)]
  _gated_shape(operands[0], operands[1], operands[2])
  model = GatedMatmulModel.create(
    operands[0],
    operands[1],
    operands[2],
    out_dtype=out_dtype,
    accumulation_chunk=accumulation_chunk,
    accumulate=accumulate,
    activation=activation,
    intermediate_dtype=intermediate_dtype,
    flush_subnormals=flush_subnormals,
  )
  return model.evaluate(
    *(Bounded.of(operand, flush_subnormals=flush_subnormals) for operand in operands)
  ).bound


def check_gated_matmul(
  actual: npt.ArrayLike,
  x: npt.ArrayLike,
  w_gate: npt.ArrayLike,
  w_up: npt.ArrayLike,
  *,
  activation: Activation | None = "silu",
  intermediate_dtype: npt.DTypeLike | None = None,
  out_dtype: npt.DTypeLike | None = None,
  accumulation_chunk: int | None = None,
  accumulate: Accumulate = "ieee",
  flush_subnormals: bool = True,
  progress: Callable[[int, int], None] | None = None,
) -> ErrorCheck:
  """Compares a kernel's act(X·G) ⊙ (X·U) with the exact one, element by element.

  As `check_matmul`, with `gated_matmul_exact` for exact and
  `gated_matmul_error_bound` for bound, in blocks.

  Args:
    actual: The kernel's result, [..., M, N].
    x: [..., M, K].
    w_gate: [..., K, N].
    w_up: The shape of `w_gate`.
    activation: "silu" or None.
    intermediate_dtype: Dtype of the two products; None: that of `actual`.
    out_dtype: Expected dtype of `actual`; None: whatever it has.
    accumulation_chunk: As in `matmul_error_bound`, as the next two.
    accumulate: As in `matmul_error_bound`.
    flush_subnormals: Whether subnormals may be replaced by zero.
    progress: Called as progress(elements done, elements in all).

  Returns:
    The comparison; it does not raise for a wrong result.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  actual, x, w_gate, w_up = (np.asarray(array) for array in (actual, x, w_gate, w_up))
  shape = _gated_shape(x, w_gate, w_up)
  if actual.shape != shape:
    raise ValueError(f"actual.shape={actual.shape}: expected {shape}, the shape of X·G")
  model = GatedMatmulModel.create(
    x,
    w_gate,
    w_up,
    out_dtype=actual.dtype if out_dtype is None else out_dtype,
    accumulation_chunk=accumulation_chunk,
    accumulate=accumulate,
    activation=activation,
    intermediate_dtype=intermediate_dtype,
    flush_subnormals=flush_subnormals,
  )
  if actual.dtype != model.out_format.dtype:
    raise ValueError(f"actual.dtype={actual.dtype}: expected out_dtype={model.out_format.name}")

  def blocks() -> Iterator[tuple[Block, Bounded]]:
    *batch, m, n = shape
    k = model.product.k
    rows_of = np.broadcast_to(x, (*batch, m, k))
    gate_of, up_of = (np.broadcast_to(w, (*batch, k, n)) for w in (w_gate, w_up))

    def exactly(values: npt.NDArray[np.generic]) -> Bounded:
      return Bounded.of(values, flush_subnormals=flush_subnormals)

    for outer, columns, row_spans in result_blocks(shape, k):
      gate, up = (exactly(w[outer][:, columns]) for w in (gate_of, up_of))
      for rows in row_spans:
        yield (*outer, rows, columns), model.evaluate(exactly(rows_of[outer][rows]), gate, up)

  return check_blocks(actual, blocks(), progress=progress)


assert_gated_matmul_close = asserting(check_gated_matmul, assert_passed)
