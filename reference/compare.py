"""Compares a computed matmul with the exact one, within its derived bound."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.accumulation import Accumulate
from reference.bounds import MatmulErrorModel, StageBounds, evaluate_block, operand_format
from reference.formats import Float64Array, to_float64
from reference.ops import Activation, result_shape
from reference.spacing import ulp

# Elements of a float64 operand slice and of a result block. 2^23 are 64 MiB; of each operand a
# slice and its absolute values are held, and of a result block about a dozen arrays of up to
# 2^21 elements (16 MiB), so a check peaks below 0.5 GiB beyond its arguments. Slices of
# K = 4096 are 2048 wide then, enough for BLAS to run at full speed.
_OPERAND_BLOCK_ELEMENTS = 2**23
_RESULT_BLOCK_ELEMENTS = 2**21

Index = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class MatmulCheck:
  """How a computed matmul compares with the exact result.

  "Exact" is `matmul_exact` of the same operands, "bound" is
  `matmul_error_bound` for the same options. Elements that have no finite
  exact value or no bound take no part in `max_ulp` and the norms.

  Attributes:
    passed: Every element is within its bound. A result that is not finite
      fails, unless exact arithmetic gives the same infinity or NaN, rounding
      can overflow to it, or the element is one of `unbounded_elements`.
    max_ulp: Largest |actual - exact| / ulp(exact) in last places of the out
      dtype. Correct rounding alone gives at most 0.5. Where a sum cancels, a
      tiny exact value makes the number large although the error is small
      beside the terms; `worst_bound_fraction` is what judges.
    relative_error: ||actual - exact||_F / ||exact||_F. Infinite if an element
      that has to be finite is not.
    error_bound: ||bound||_F / ||exact||_F, the most that `relative_error` can
      be if every element keeps its bound.
    max_error_bound: Largest bound of an element, in absolute terms.
    worst_bound_fraction: Largest |actual - exact| / bound; at most 1 if
      `passed`, infinite for a wrong infinity or NaN.
    worst_index: Where that is; None for an empty result.
    worst_actual: The computed value there.
    worst_exact: The exact value there.
    worst_error: |actual - exact| there.
    worst_bound: The bound there.
    worst_ulp: The error there in last places of the out dtype.
    failed_elements: How many elements are past their bound.
    unbounded_elements: How many have no bound, because the float32 sum may
      overflow on the way; these are not judged.
    elements: How many there are in all.
    out_dtype: Name of the dtype whose last place and rounding count.
  """

  passed: bool
  max_ulp: float
  relative_error: float
  error_bound: float
  max_error_bound: float
  worst_bound_fraction: float
  worst_index: Index | None
  worst_actual: float
  worst_exact: float
  worst_error: float
  worst_bound: float
  worst_ulp: float
  failed_elements: int
  unbounded_elements: int
  elements: int
  out_dtype: str


@dataclasses.dataclass
class _Tally:
  """Running maxima and sums over the blocks of a result."""

  max_ulp: float = 0.0
  error_norm: float = 0.0
  exact_norm: float = 0.0
  bound_norm: float = 0.0
  max_bound: float = 0.0
  failed: int = 0
  unbounded: int = 0
  worst_fraction: float = -1.0
  worst_index: Index | None = None
  # actual, exact, error, bound, error in ulp
  worst: tuple[float, float, float, float, float] = (math.nan,) * 5

  def add(self, actual: npt.NDArray[Any], stages: StageBounds, origin: Index) -> None:
    """Takes in a block of the result whose first element is at `origin`."""
    if not actual.size:
      return
    exact, bound = stages.exact, stages.bound
    computed = to_float64(actual, name="actual")
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
      error = np.abs(computed - exact)
      # equal infinities, and NaN where NaN is due, are no error; any other one is infinite
      same = (computed == exact) | (np.isnan(computed) & np.isnan(exact))
      overflowed = stages.may_overflow & np.isinf(computed) & ((computed > 0) == (exact > 0))
      accepted = same | overflowed | stages.unbounded
      error = np.where(accepted, 0.0, np.where(np.isnan(error), np.inf, error))
      # without the first case 0 / 0 would spoil exact results with a bound of 0
      fraction = np.where(error == 0.0, 0.0, error / bound)
      # at an exact infinity or NaN there is no ulp; the error is 0 or infinite there
      ulps = np.where((error == 0.0) | np.isinf(error), error, error / ulp(exact, actual.dtype))

    counted = np.isfinite(exact) & ~stages.unbounded & ~overflowed
    self.unbounded += int(np.count_nonzero(stages.unbounded))
    self.failed += int(np.count_nonzero(fraction > 1.0))
    self.max_ulp = max(self.max_ulp, float(ulps.max()))
    self.max_bound = max(self.max_bound, float(bound.max(where=counted, initial=0.0)))
    self.error_norm = math.hypot(self.error_norm, _norm(error))
    self.exact_norm = math.hypot(self.exact_norm, _norm(np.where(counted, exact, 0.0)))
    self.bound_norm = math.hypot(self.bound_norm, _norm(np.where(counted, bound, 0.0)))

    at = np.unravel_index(int(fraction.argmax()), fraction.shape)
    if fraction[at] > self.worst_fraction:
      self.worst_fraction = float(fraction[at])
      self.worst_index = (*origin[:-2], origin[-2] + int(at[0]), origin[-1] + int(at[1]))
      values = (computed, exact, error, bound, ulps)
      first, second, third, fourth, fifth = (float(array[at]) for array in values)
      self.worst = (first, second, third, fourth, fifth)


def _norm(values: Float64Array) -> float:
  """Frobenius norm, scaled so that squares neither overflow nor vanish."""
  largest = float(np.abs(values).max())
  if largest == 0.0 or not math.isfinite(largest):
    return largest
  return largest * float(np.linalg.norm(values / largest))


def _ratio(part: float, whole: float) -> float:
  """part / whole, with 0 / 0 = 0."""
  if whole == 0.0:
    return 0.0 if part == 0.0 else math.inf
  return part / whole


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
  model = MatmulErrorModel.create(
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

  *batch, m, n = shape
  a = np.broadcast_to(a, (*batch, m, model.k))
  b = np.broadcast_to(b, (*batch, model.k, n))
  bias = None if bias is None else np.broadcast_to(bias, shape)
  widest = max(1, _OPERAND_BLOCK_ELEMENTS // max(model.k, 1))
  columns = max(1, min(n, widest, _RESULT_BLOCK_ELEMENTS))
  rows = max(1, min(m, widest, _RESULT_BLOCK_ELEMENTS // columns))

  tally = _Tally()
  done = 0
  for outer in np.ndindex(*batch):
    for column_span in _spans(n, columns):
      b_slice = to_float64(b[outer][:, column_span])
      for row_span in _spans(m, rows):
        block = (*outer, row_span, column_span)
        stages = evaluate_block(
          model,
          to_float64(a[outer][row_span]),
          b_slice,
          None if bias is None else bias[block],
        )
        tally.add(actual[block], stages, (*outer, row_span.start, column_span.start))
        done += stages.exact.size
        if progress is not None:
          progress(done, actual.size)

  worst_actual, worst_exact, worst_error, worst_bound, worst_ulp = tally.worst
  return MatmulCheck(
    passed=tally.failed == 0,
    max_ulp=tally.max_ulp,
    relative_error=_ratio(tally.error_norm, tally.exact_norm),
    error_bound=_ratio(tally.bound_norm, tally.exact_norm),
    max_error_bound=tally.max_bound,
    worst_bound_fraction=max(tally.worst_fraction, 0.0),
    worst_index=tally.worst_index,
    worst_actual=worst_actual,
    worst_exact=worst_exact,
    worst_error=worst_error,
    worst_bound=worst_bound,
    worst_ulp=worst_ulp,
    failed_elements=tally.failed,
    unbounded_elements=tally.unbounded,
    elements=actual.size,
    out_dtype=model.out_format.name,
  )


def assert_matmul_close(
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
) -> MatmulCheck:
  """`check_matmul`, raising where it does not pass; same arguments.

  Returns:
    The comparison, for further assertions.

  Raises:
    AssertionError: an element is past its bound, or none of the elements has
      a bound, so that nothing would be tested. Says how many failed, and for
      the worst one where it is, its value, the exact value, the error, the
      bound and the error in ulp.
    ValueError: a shape, a dtype or an option is wrong.
  """
  check = check_matmul(
    actual,
    a,
    b,
    bias=bias,
    activation=activation,
    intermediate_dtype=intermediate_dtype,
    out_dtype=out_dtype,
    accumulation_chunk=accumulation_chunk,
    accumulate=accumulate,
    flush_subnormals=flush_subnormals,
  )
  if not check.passed:
    index = "" if check.worst_index is None else ", ".join(map(str, check.worst_index))
    raise AssertionError(
      f"{check.failed_elements} of {check.elements} {check.out_dtype} elements are past their "
      f"error bound; worst [{index}]: actual {check.worst_actual!r}, exact {check.worst_exact!r}, "
      f"error {check.worst_error:.4g}, bound {check.worst_bound:.4g} "
      f"({check.worst_bound_fraction:.4g} times it), {check.worst_ulp:.4g} ulp"
    )
  if check.elements and check.unbounded_elements == check.elements:
    raise AssertionError(
      f"none of the {check.elements} elements has an error bound: |A|·|B| exceeds float32"
    )
  return check
