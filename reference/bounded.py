"""What a float32 computation may give: exact values, how far it may be off, where it may overflow.

A kernel's result is described stage by stage. Each operation of `Bounded` takes
what the stage before may give to what this one may give, so that the error
bound of an op is the composition that the op is: act(A·B + bias) is
`bounded_matmul(a, b).add(bias).round(dtype).silu().round(out_dtype)`.
"""

import dataclasses
from typing import assert_never

import numpy as np
import numpy.typing as npt

from reference.activations import Activation, silu, silu_error_bound
from reference.formats import Float64Array, FloatFormat, float_format, to_float64, value_format
from reference.rounding import round_to_format
from reference.spacing import ulp

BoolArray = npt.NDArray[np.bool_]

FLOAT32 = float_format(np.float32)
MIN_NORMAL = 2.0**FLOAT32.min_exponent
MIN_SUBNORMAL = 2.0**FLOAT32.min_subnormal_exponent

# What `round` adds to its bound, relative: its own float64 arithmetic rounds twice, and whoever
# compares |computed - exact| with it or takes it further rounds once more, 2^-53 each.
_FLOAT64_ALLOWANCE = 2.0**-51


def operand_format(name: str, dtype: npt.DTypeLike) -> FloatFormat:
  """Format of an operand whose values float32 holds.

  Raises:
    ValueError: the dtype is float64 or unknown.
  """
  fmt = float_format(dtype, name=f"{name}.dtype")
  if fmt.precision > FLOAT32.precision:
    raise ValueError(
      f"{name}.dtype={fmt.name}: the bound is that of float32 arithmetic; "
      "expected float32 or a narrower float dtype"
    )
  return fmt


@dataclasses.dataclass(frozen=True)
class Bounded:
  """Exact values x and what a float32 computation of them may give instead, v.

  |v - x| <= error, with these exceptions, element by element:

  - x is infinite or NaN: v is the same. `error` is 0 there.
  - `may_overflow`: v may be the infinity of x's sign instead.
  - `unbounded`: nothing is promised; v may be anything, NaN included.

  `error` covers subnormal values that are read as zero too, where that is
  allowed: if v may be below 2^-126 in magnitude, v = 0 is covered as well. So
  each operation has to add only what flushing its own result costs.

  x is float64 and has rounding errors of its own, 2^-53 relative an operation;
  `error` is against x as it stands and has room for them: each docstring says
  where. Arrays are not copied and must not be written to.

  Attributes:
    exact: x, float64, any shape.
    error: Bound on |v - x|, float64, same shape, finite unless `unbounded`.
    may_overflow: Where v may be infinite with the sign of `exact`.
    unbounded: Where nothing is known about v.
    format: A format that holds every v.
  """

  exact: Float64Array
  error: Float64Array
  may_overflow: BoolArray
  unbounded: BoolArray
  format: FloatFormat = FLOAT32

  @classmethod
  def of(
    cls, values: npt.ArrayLike, *, flush_subnormals: bool = True, name: str = "values"
  ) -> "Bounded":
    """Values that are given, hence exact: v = x, error 0.

    Only a value below float32's smallest normal one, 2^-126, may be read as
    zero with `flush_subnormals`: its error is |x|.

    Args:
      values: float32, float16, bfloat16 or float8_e4m3fn; its dtype is `format`.
      flush_subnormals: Whether subnormal float32 values may count as zero.
      name: What to call the argument in the error.

    Raises:
      ValueError: the dtype is float64 or unknown.
    """
    array = np.asarray(values)
    fmt = operand_format(name, array.dtype)
    return cls.of_float64(to_float64(array), fmt, flush_subnormals=flush_subnormals)

  @classmethod
  def of_float64(
    cls, exact: Float64Array, fmt: FloatFormat, *, flush_subnormals: bool
  ) -> "Bounded":
    """`of` for a float64 copy of values in `fmt`."""
    # zeros without memory: an operand's error is rarely anything else
    nothing = np.broadcast_to(np.zeros(()), exact.shape)
    nowhere = np.broadcast_to(np.zeros((), np.bool_), exact.shape)
    error = nothing
    if flush_subnormals and fmt.min_subnormal_exponent < FLOAT32.min_exponent:
      magnitude = np.abs(exact)
      lost = (magnitude < MIN_NORMAL) & (exact != 0)
      if lost.any():
        error = np.where(lost, magnitude, 0.0)
    return cls(exact, error, nowhere, nowhere, fmt)

  @classmethod
  def within(cls, exact: npt.ArrayLike, error: npt.ArrayLike) -> "Bounded":
    """A float32 quantity computed to within a known error, overflow apart.

    Args:
      exact: x, float64 or exactly convertible to it.
      error: Bound on |v - x|; broadcasts with `exact`. Flushing, if any, is in it.

    Raises:
      ValueError: an error is negative, infinite or NaN.
    """
    exact = to_float64(exact, name="exact")
    error = np.broadcast_to(to_float64(error, name="error"), exact.shape)
    if not np.all((error >= 0) & np.isfinite(error)):
      raise ValueError(f"error={error}: expected finite numbers of at least 0")
    nowhere = np.broadcast_to(np.zeros((), np.bool_), exact.shape)
    return cls(exact, np.where(np.isfinite(exact), error, 0.0), nowhere, nowhere)

  @property
  def bound(self) -> Float64Array:
    """`error`, infinite where v may overflow or nothing is known."""
    return np.where(self.may_overflow | self.unbounded, np.inf, self.error)

  def add(self, other: "Bounded", *, flush_subnormals: bool = True) -> "Bounded":
    """x + y in float32, rounded to nearest; shapes broadcast.

        e = e_x + e_y + 2^-24·(|x + y| + e_x + e_y) + η

    The operands are off by e_x + e_y together, so the sum that is rounded is at
    most |x + y| + e_x + e_y. Rounding moves it by at most u / (1 + u) of itself,
    u = 2^-24. u instead leaves 2^-49 of it, for float64's roundings of x + y
    and of e. Below 2^-126 sums are exact (multiples of 2^-149), or with
    flushing they vanish: η = 2^-126, else 0.

    An infinity that an operand may have overflowed to has the result's sign
    only if the exact sum has it; otherwise, and where it may meet an infinity
    of the other sign, nothing is promised.
    """
    x, y = self, other
    with np.errstate(invalid="ignore", over="ignore"):
      exact = x.exact + y.exact
      error = x.error + y.error
      error = error + FLOAT32.unit_roundoff * (np.abs(exact) + error)
      if flush_subnormals:
        error += MIN_NORMAL
    may_overflow = x.may_overflow | y.may_overflow
    unbounded = x.unbounded | y.unbounded
    if may_overflow.any():
      for operand in (x, y):
        opposite = np.sign(operand.exact) != np.sign(exact)
        unbounded = unbounded | (operand.may_overflow & opposite)
    return _float32(exact, error, may_overflow, unbounded)

  def multiply(self, other: "Bounded", *, flush_subnormals: bool = True) -> "Bounded":
    """x·y in float32, rounded to nearest; shapes broadcast.

        e_p = |x|·e_y + |y|·e_x + e_x·e_y
        e = e_p + 2^-24·(|x·y| + e_p) + η

    from v_x·v_y - x·y = x·(v_y - y) + y·(v_x - x) + (v_x - x)·(v_y - y) and
    one rounding, as in `add`, whose 2^-49 for float64's roundings serves here
    too. Below 2^-126 the product is off by half of 2^-149, or vanishes: η.

    An infinity times a factor whose sign is certain, e_y < |y|, is the infinity
    of the product's sign; times one that may be zero or of either sign it may
    be NaN or of either sign, so nothing is promised. NaN in one factor makes
    the product NaN whatever the other is.
    """
    x, y = self, other
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
      exact = x.exact * y.exact
      x_abs, y_abs = np.abs(x.exact), np.abs(y.exact)
      error = x_abs * y.error + (y_abs + y.error) * x.error
      error = error + FLOAT32.unit_roundoff * (np.abs(exact) + error)
      error += MIN_NORMAL if flush_subnormals else MIN_SUBNORMAL / 2
    unbounded = x.unbounded | y.unbounded
    for infinite, factor in ((x, y), (y, x)):
      magnitude = np.abs(factor.exact)
      # an exact infinity times an exact zero is NaN for certain, so it is not in doubt
      doubt = np.isinf(infinite.exact) & (factor.error > 0) | infinite.may_overflow
      unbounded = unbounded | (doubt & (magnitude <= factor.error))
    return _float32(exact, error, x.may_overflow | y.may_overflow, unbounded)

  def divide(
    self, other: "Bounded", *, roundoffs: float = 1.0, flush_subnormals: bool = True
  ) -> "Bounded":
    """x / y in float32, to within `roundoffs` times 2^-24; shapes broadcast.

        e_q = (e_x + |x/y|·e_y) / (|y| - e_y)
        e = e_q + roundoffs·2^-24·(|x/y| + e_q) + η

    from v_x/v_y - x/y = ((v_x - x) - (x/y)·(v_y - y)) / v_y. One roundoff is a
    quotient rounded to nearest, four are one within 2 ulp. 2^-50 of e more
    leaves room for float64's roundings. Below 2^-126 the quotient is off by
    2^-149 times `roundoffs`, or vanishes: η.

    A divisor that may be zero or of either sign, e_y >= |y|, leaves nothing
    promised, except 0 / 0, inf / inf and NaN, which are NaN, and x / 0 for
    certain: infinite. The same goes for an infinite divisor that is in doubt.
    """
    x, y = self, other
    with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
      exact = x.exact / y.exact
      magnitude, y_abs = np.abs(exact), np.abs(y.exact)
      error = np.where(y.error > 0, magnitude * y.error, 0.0)
      error = (x.error + error) / np.where(y_abs > y.error, y_abs - y.error, y_abs)
      error = error + roundoffs * FLOAT32.unit_roundoff * (magnitude + error)
      error *= 1.0 + 2 * _FLOAT64_ALLOWANCE
      error += MIN_NORMAL if flush_subnormals else MIN_SUBNORMAL * roundoffs
    unbounded = x.unbounded | y.unbounded | y.may_overflow
    unbounded = unbounded | ((y.error > 0) & (y_abs <= y.error))
    unbounded = unbounded | (x.may_overflow & np.isinf(y.exact))
    # an exact zero divisor: an infinity has the sign of a numerator that is certain
    unbounded = unbounded | ((y.exact == 0) & (x.error >= np.abs(x.exact)) & (x.exact != 0))
    unbounded = unbounded | ((y.exact == 0) & (x.exact == 0) & (x.error > 0))
    error = np.where(np.isnan(error) | np.isinf(error), 0.0, error)
    return _float32(exact, error, x.may_overflow | np.zeros(exact.shape, np.bool_), unbounded)

  def silu(self) -> "Bounded":
    """silu(x) evaluated in float32: e = `silu_error_bound`(x, e_x).

    Its constants, rounded up, leave room for float64's roundings. +inf stays
    +inf. -inf becomes 0: exactly where x is -inf; where v may be -inf but x is
    finite, 0 is off by |silu(x)|, which e covers then.
    """
    exact = silu(self.exact)
    with np.errstate(invalid="ignore"):
      error = silu_error_bound(self.exact, self.error)
      positive = self.exact > 0
    vanished = self.may_overflow & ~positive
    if vanished.any():
      error = np.where(vanished, np.maximum(error, np.abs(exact)), error)
    error = _zero_where_special(self.exact, error)
    return _float32(exact, error, self.may_overflow & positive, self.unbounded)

  def activate(self, activation: Activation) -> "Bounded":
    """The activation of that name, evaluated in float32."""
    if activation == "silu":
      return self.silu()
    assert_never(activation)

  def round(self, dtype: npt.DTypeLike) -> "Bounded":
    """v rounded to nearest in `dtype`; x stays, so that the rounding counts as error.

        e = e_x + h(|x| + e_x)

    with h half the unit in the last place at that magnitude; at most half the
    smallest subnormal below that, and 0 at 0, which is no number to round. It is
    taken against the unrounded x, since next to a rounding boundary any e_x > 0
    can tip the result. float32 rounds nothing, it holds v already. (1 + 2^-51)
    times e leaves room for float64's roundings.

    From `overflow_threshold` on v becomes infinite. A format without
    infinities saturates: e is at least the distance to its largest value, from
    |x| + e_x, and from |x| where v may be infinite. Where x itself is infinite
    no finite number is at any distance from it, so that is `unbounded`.

    Flushing costs nothing more: a result below 2^-126 stems from a v below it
    (float32's exponent range is the widest), whose flushing e_x covers.

    Raises:
      ValueError: `dtype` is unknown.
    """
    fmt = float_format(dtype)
    if fmt == self.format:
      return self
    with np.errstate(invalid="ignore", over="ignore"):
      magnitude = np.abs(self.exact)
      reach = magnitude + self.error
      error = self.error
      if fmt.precision < FLOAT32.precision:
        moved = np.where(reach > 0, 0.5 * ulp(reach, fmt.dtype), 0.0)
        if not fmt.has_infinity:
          np.maximum(moved, reach - fmt.max_finite, out=moved)
        moved += error
        moved *= 1.0 + _FLOAT64_ALLOWANCE
        error = moved
      if not fmt.has_infinity and self.may_overflow.any():
        saturated = np.abs(magnitude - fmt.max_finite)
        error = np.where(self.may_overflow, np.maximum(error, saturated), error)
    return self._overflowing(self.exact, error, fmt)

  def quantize(self, dtype: npt.DTypeLike) -> "Bounded":
    """v rounded to nearest in `dtype`, and x as well: the rounding is part of the definition.

        q = round(x),   e = max(round(x + e_x) - q, q - round(x - e_x))

    Rounding is monotonic, so what v rounds to lies between the two ends. e is 0
    unless a rounding boundary is within e_x of x, and then one spacing of `dtype`
    as a rule: only there may v have gone the other way. The ends are taken one
    float64 further out, since their sums round, except where e_x = 0.

    Past the largest finite value q is that value, and `may_overflow` says that
    an infinity is as good. Infinite x stay, or saturate in a format without
    infinities. int8 stands for quantisation codes, -127..127, in which NaN is 0.

    Raises:
      ValueError: `dtype` is unknown.
    """
    fmt = value_format(dtype)
    x, e = self.exact, self.error

    def nearest(values: Float64Array) -> Float64Array:
      return round_to_format(values, fmt, saturate=True).astype(np.float64)

    with np.errstate(invalid="ignore", over="ignore"):
      upper = np.where(e > 0, np.nextafter(x + e, np.inf), x)
      lower = np.where(e > 0, np.nextafter(x - e, -np.inf), x)
      exact = nearest(x)
      error = np.maximum(nearest(upper) - exact, exact - nearest(lower))
      if fmt.has_infinity:
        exact = np.where(np.isinf(x), x, exact)
      elif self.may_overflow.any():
        saturated = fmt.max_finite - np.abs(exact)
        error = np.where(self.may_overflow, np.maximum(error, saturated), error)
    return self._overflowing(exact, _zero_where_special(x, error), fmt)

  def _overflowing(self, exact: Float64Array, error: Float64Array, fmt: FloatFormat) -> "Bounded":
    """The result of rounding `self` to `fmt`: where that may overflow."""
    if not fmt.has_infinity:
      nowhere = np.zeros(exact.shape, np.bool_)
      return Bounded(
        exact, _zero_where_special(exact, error), nowhere, self.unbounded | np.isinf(exact), fmt
      )
    threshold = min(fmt.overflow_threshold, FLOAT32.overflow_threshold)
    may_overflow, unbounded = _overflow(
      self.exact, self.error, threshold, self.may_overflow, self.unbounded
    )
    return Bounded(exact, _zero_where_special(exact, error), may_overflow, unbounded, fmt)


def _zero_where_special(exact: Float64Array, error: Float64Array) -> Float64Array:
  """`error`, 0 at infinities and NaN of `exact`."""
  special = ~np.isfinite(exact)
  return np.where(special, 0.0, error) if special.any() else error


def _overflow(
  exact: Float64Array,
  error: Float64Array,
  threshold: float,
  may_overflow: BoolArray,
  unbounded: BoolArray,
) -> tuple[BoolArray, BoolArray]:
  """Adds to both flags where values of up to |exact| + error become infinite from `threshold` on.

  An infinity of the other sign is within reach where error - |exact| passes the
  threshold too: nothing is promised there.
  """
  with np.errstate(invalid="ignore", over="ignore"):
    magnitude = np.abs(exact)
    past = magnitude + error >= threshold
    if past.any():
      unbounded = unbounded | (error - magnitude >= threshold)
    finite = np.isfinite(exact)
    return (may_overflow | past) & finite, unbounded & ~np.isnan(exact)


def _float32(
  exact: Float64Array, error: Float64Array, may_overflow: BoolArray, unbounded: BoolArray
) -> Bounded:
  """The result of a float32 operation, which may have overflowed."""
  may_overflow, unbounded = _overflow(
    exact, error, FLOAT32.overflow_threshold, may_overflow, unbounded
  )
  return Bounded(exact, _zero_where_special(exact, error), may_overflow, unbounded)
