"""Compares the result of each op with the exact one, within its derived bound."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from reference.accumulation import Accumulate
from reference.activations import Activation
from reference.bounded import Bounded, operand_format
from reference.bounds import MatmulModel
from reference.judge import Block, ErrorCheck, assert_passed, asserting, check_blocks
from reference.ops import result_shape

# Elements of a float64 operand slice and of a result block. 2^23 are 64 MiB; of each operand a
# slice and its absolute values are held, and of a result block about a dozen arrays of up to
# 2^21 elements (16 MiB), so a check peaks below 0.5 GiB beyond its arguments. Slices of
# K = 4096 are 2048 wide then, enough for BLAS to run at full speed.
_OPERAND_BLOCK_ELEMENTS = 2**23
_RESULT_BLOCK_ELEMENTS = 2**21

# What `check_matmul` returns; the same for every op.
MatmulCheck = ErrorCheck


def _spans(size: int, step: int) -> Iterator[slice]:
  """Cuts 0..size into slices of at most `step`."""
  for start in range(0, size, step):
    yield slice(start, min(start + step, size))


def check_matmul(
  actual: npt.ArrayLike,
  a: npt.ArrayLike,
  b: npt.ArrayLike,
  *,
  bias: npt.ArrayLike | None = None,
  activation: Activation | None = None,
  intermediate_dtype: npt.DTypeLike | None = None,
  out_dtype: npt.DTypeLike | None = None,
  accumulation_chunk: int | None = None,
  accumulate: Accumulate = "ieee",
  flush_subnormals: bool = True,
  progress: Callable[[int, int], None] | None = None,
) -> MatmulCheck:
  """Compares a kernel's act(A·B + bias) with the exact result, element by element.

  |actual - exact| <= bound has to hold for each element, with `matmul_exact`
  for exact and `matmul_error_bound` for bound. Works through the result in
  blocks: 1024 x 4096 x 12288 takes two float64 products (206 GFLOP) and
  less than 0.5 GiB beyond the arguments.

  Args:
    actual: The kernel's result, [..., M, N]. To check a part of one, slice it
      together with the rows of `a` and columns of `b` and `bias`.
    a: [..., M, K].
    b: [..., K, N].
    bias: As in `reference.matmul`, as the next two.
    activation: None or "silu".
    intermediate_dtype: Dtype before the activation; None: that of `actual`.
    out_dtype: Expected dtype of `actual`; None: whatever it has.
    accumulation_chunk: As in `matmul_error_bound`, as the next two.
    accumulate: "ieee" or "tensor_core".
    flush_subnormals: Whether subnormals may be replaced by zero.
    progress: Called as progress(elements done, elements in all) after each
      block.

  Returns:
    The comparison; it does not raise for a wrong result.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  actual, a, b = np.asarray(actual), np.asarray(a), np.asarray(b)
  bias = None if bias is None else np.asarray(bias)
  shape = result_shape(a, b, bias)
  if actual.shape != shape:
    raise ValueError(f"actual.shape={actual.shape}: expected {shape}, the shape of A·B")
  if bias is not None:
    operand_format("bias", bias.dtype)
  model = MatmulModel.create(
    a,
    b,
    out_dtype=actual.dtype if out_dtype is None else out_dtype,
    accumulation_chunk=accumulation_chunk,
    accumulate=accumulate,
    activation=activation,
    intermediate_dtype=intermediate_dtype,
    flush_subnormals=flush_subnormals,
  )
  if actual.dtype != model.out_format.dtype:
    raise ValueError(f"actual.dtype={actual.dtype}: expected out_dtype={model.out_format.name}")

  return check_blocks(
    actual,
    _matmul_blocks(model, a, b, bias, shape, flush_subnormals=flush_subnormals),
    progress=progress,
  )


def result_blocks(
  shape: tuple[int, ...], k: int
) -> Iterator[tuple[tuple[int, ...], slice, list[slice]]]:
  """Cuts a product of `shape` [..., M, N], K terms a sum, into blocks that hold memory down.

  Yields (outer, columns, rows): an index of the leading dimensions, columns of
  B and, for these, one after the other, rows of A.
  """
  *batch, m, n = shape
  widest = max(1, _OPERAND_BLOCK_ELEMENTS // max(k, 1))
  columns = max(1, min(n, widest, _RESULT_BLOCK_ELEMENTS))
  rows = max(1, min(m, widest, _RESULT_BLOCK_ELEMENTS // columns))
  for outer in np.ndindex(*batch):
    for column_span in _spans(n, columns):
      yield outer, column_span, list(_spans(m, rows))


def _matmul_blocks(
  model: MatmulModel,
  a: npt.NDArray[np.generic],
  b: npt.NDArray[np.generic],
  bias: npt.NDArray[np.generic] | None,
  shape: tuple[int, ...],
  *,
  flush_subnormals: bool,
) -> Iterator[tuple[Block, Bounded]]:
  """What act(A·B + bias), of `shape`, may be, block by block."""
  *batch, m, n = shape
  k = model.product.k
  a = np.broadcast_to(a, (*batch, m, k))
  b = np.broadcast_to(b, (*batch, k, n))
  bias = None if bias is None else np.broadcast_to(bias, shape)

  def exactly(values: npt.NDArray[np.generic]) -> Bounded:
    return Bounded.of(values, flush_subnormals=flush_subnormals)

  for outer, column_span, row_spans in result_blocks(shape, k):
    b_slice = exactly(b[outer][:, column_span])
    for row_span in row_spans:
      block: Block = (*outer, row_span, column_span)
      yield (
        block,
        model.evaluate(
          exactly(a[outer][row_span]), b_slice, None if bias is None else exactly(bias[block])
        ),
      )


assert_matmul_close = asserting(check_matmul, assert_passed)
