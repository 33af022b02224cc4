"""Holds computed values against what a float32 computation may give, block by block."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from reference.bounded import Bounded
from reference.formats import Float64Array, to_float64, value_format
from reference.spacing import ulp

P = ParamSpec("P")
R = TypeVar("R")

Index = tuple[int, ...]
# Where a block of a result lies: a number or a slice for each dimension, or for the first of them.
Block = tuple[int | slice, ...]


@dataclasses.dataclass(frozen=True)
class ErrorCheck:
  """How a computed result compares with the exact one.

  "Exact" and "bound" are those of the `Bounded` it is held against: for a
  matmul `matmul_exact` of the same operands and `matmul_error_bound` for the
  same options. Elements that have no finite exact value or no bound take no
  part in `max_ulp` and the norms.

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
    unbounded_elements: How many have no bound, because float32 may
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

  def add(self, actual: npt.NDArray[Any], expected: Bounded, block: Block) -> None:
    """Takes in the part of the result that lies at `block`."""
    if not actual.size:
      return
    exact, bound = expected.exact, expected.error
    computed = to_float64(actual, name="actual")
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
      error = np.abs(computed - exact)
      # equal infinities, and NaN where NaN is due, are no error; any other one is infinite
      same = (computed == exact) | (np.isnan(computed) & np.isnan(exact))
      overflowed = expected.may_overflow & np.isinf(computed) & ((computed > 0) == (exact > 0))
      accepted = same | overflowed | expected.unbounded
      error = np.where(accepted, 0.0, np.where(np.isnan(error), np.inf, error))
      # without the first case 0 / 0 would spoil exact results with a bound of 0
      fraction = np.where(error == 0.0, 0.0, error / bound)
      # at an exact infinity or NaN there is no ulp; the error is 0 or infinite there
      ulps = np.where((error == 0.0) | np.isinf(error), error, error / ulp(exact, actual.dtype))

    counted = np.isfinite(exact) & ~expected.unbounded & ~overflowed
    self.unbounded += int(np.count_nonzero(expected.unbounded))
    self.failed += int(np.count_nonzero(fraction > 1.0))
    self.max_ulp = max(self.max_ulp, float(ulps.max()))
    self.max_bound = max(self.max_bound, float(bound.max(where=counted, initial=0.0)))
    self.error_norm = math.hypot(self.error_norm, _norm(error))
    self.exact_norm = math.hypot(self.exact_norm, _norm(np.where(counted, exact, 0.0)))
    self.bound_norm = math.hypot(self.bound_norm, _norm(np.where(counted, bound, 0.0)))

    at = np.unravel_index(int(fraction.argmax()), fraction.shape)
    if fraction[at] > self.worst_fraction:
      self.worst_fraction = float(fraction[at])
      self.worst_index = _locate(block, tuple(map(int, at)))
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


def _locate(block: Block, at: Index) -> Index:
  """Index in the whole result of the element at `at` in `block`."""
  inside = iter(at)
  outer = [key if isinstance(key, int) else (key.start or 0) + next(inside) for key in block]
  return (*outer, *inside)


def check_blocks(
  actual: npt.NDArray[Any],
  blocks: Iterable[tuple[Block, Bounded]],
  *,
  progress: Callable[[int, int], None] | None = None,
) -> ErrorCheck:
  """Compares a computed result with the exact one, a block at a time.

  Args:
    actual: The result; its dtype's last place is what counts as an ulp.
    blocks: Cover `actual` once. Each says where it lies, and what the elements
      there may be; only one is held at a time.
    progress: Called as progress(elements done, elements in all) after each
      block.

  Returns:
    The comparison; it does not raise for a wrong result.

  Raises:
    ValueError: the dtype is unknown.
  """
  fmt = value_format(actual.dtype, name="actual.dtype")
  tally = _Tally()
  done = 0
  for block, expected in blocks:
    tally.add(np.asarray(actual[block]), expected, block)
    done += expected.exact.size
    if progress is not None:
      progress(done, actual.size)

  worst_actual, worst_exact, worst_error, worst_bound, worst_ulp = tally.worst
  return ErrorCheck(
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
    out_dtype=fmt.name,
  )


def assert_passed(check: ErrorCheck) -> ErrorCheck:
  """The check itself, for further assertions.

  Raises:
    AssertionError: an element is past its bound, or none of the elements has
      a bound, so that nothing would be tested. Says how many failed, and for
      the worst one where it is, its value, the exact value, the error, the
      bound and the error in ulp.
  """
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
      f"none of the {check.elements} elements has an error bound: float32 may overflow in each"
    )
  return check


def check_within(actual: npt.ArrayLike, expected: Bounded) -> ErrorCheck:
  """`assert_within` without raising where an element is past its bound; same arguments.

  Raises:
    ValueError: the shape or the dtype is another one.
  """
  actual = np.asarray(actual)
  if actual.shape != expected.exact.shape:
    raise ValueError(f"actual.shape={actual.shape}: expected {expected.exact.shape}")
  if actual.dtype != expected.format.dtype:
    raise ValueError(
      f"actual.dtype={actual.dtype}: expected {expected.format.name}; "
      "Bounded.round gives what another dtype may hold"
    )
  return check_blocks(actual, [((), expected)])


def asserting(check: Callable[P, R], raising: Callable[[R], R]) -> Callable[P, R]:
  """`check` of the same arguments, raising where it does not pass: `assert_..._close`.

  Args:
    check: Called `check_...`; compares a result with the definition.
    raising: Returns a comparison that passed and raises AssertionError for
      another, as `assert_passed` does.
  """

  @functools.wraps(check)
  def checked(*operands: P.args, **options: P.kwargs) -> R:
    return raising(check(*operands, **options))

  name = check.__name__
  checked.__name__ = checked.__qualname__ = f"assert_{name.removeprefix('check_')}_close"
  checked.__doc__ = f"""`{name}`, raising where it does not pass; same arguments.

  Returns:
    The comparison, for further assertions.

  Raises:
    AssertionError: a value is past its bound, or none has one, so that nothing
      would be tested. Says how many failed, and for the worst one where it is,
      its value, the exact value, the error, the bound and the error in ulp.
    ValueError: a shape, a dtype or an option is wrong.
  """
  return checked


def assert_within(actual: npt.ArrayLike, expected: Bounded) -> ErrorCheck:
  """Asserts that each element of a result is one that `expected` allows.

  For what has no check of its own, a gradient for instance:

      ds = Bounded.within(exact_ds, error).quantize("bfloat16")
      assert_within(d_b, bounded_matmul(a.T, ds).round("bfloat16"))

  Args:
    actual: The computed values.
    expected: What they may be, rounded to the dtype of `actual`; same shape.

  Returns:
    The comparison, for further assertions.

  Raises:
    AssertionError: as `assert_passed`.
    ValueError: the shape or the dtype is another one.
  """
  return assert_passed(check_within(actual, expected))
