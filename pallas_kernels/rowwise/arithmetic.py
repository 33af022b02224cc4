"""Float32 arithmetic of which the last bit matters: quotients and roundings to integers.

One definition of a codec serves XLA and the portable kernel only if x / y is
the float32 quotient in both. Triton makes its `/` of an approximate
instruction, within 2 ulp, and XLA makes a product of a quotient by a constant;
each is asked here for the quotient itself.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton as plgpu_triton

from pallas_kernels.activations import Functions, JaxFunctions
from pallas_kernels.device import target_device
from pallas_kernels.dtypes import narrowed


class Arithmetic(Functions, Protocol):
  """What depends on the compiler; `Functions` are for where `native_exp2` is True.

  Attributes:
    branches: Whether a branch is cheaper than what it avoids: in a kernel it is,
      a program of XLA's would be cut in pieces by it.
    native_exp2: Whether exp2 is one instruction; see `activations.silu`.
  """

  @property
  def branches(self) -> bool:
    """See the class."""
    ...

  @property
  def native_exp2(self) -> bool:
    """See the class."""
    ...

  def divide(self, x: jax.Array, y: jax.Array) -> jax.Array:
    """x / y rounded to nearest even; y finite, above 0 and of a shape that broadcasts to x's."""
    ...

  def divide_by(self, x: jax.Array, y: float) -> jax.Array:
    """x / y for a number y that the dtype of x holds, rounded the same way."""
    ...

  def divide_within(self, x: jax.Array, y: jax.Array, largest: float) -> jax.Array:
    """x / y of `divide` for codes, brought into [-largest, largest]; a NaN stays.

    It may be off by 1 ulp, at the ends to the outside, where that counts for nothing to
    who rounds it to at most 7 bits.
    """
    ...

  def round_even(self, x: jax.Array) -> jax.Array:
    """x rounded to an integer, ties to even."""
    ...

  def narrow(self, x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """x rounded to `dtype`, to nearest even, and back: a rounding on the way to a result."""
    ...

  def after(self, x: jax.Array, number: jax.Array) -> jax.Array:
    """x, which the compiler is to take for something new that there is with `number`.

    What was computed of x before is then not kept in registers for what is computed
    of it later; a float32 copy of a 16-bit x takes twice its room.
    """
    ...


@dataclasses.dataclass(frozen=True)
class XlaArithmetic(JaxFunctions):
  """As XLA compiles it, in an interpreter too.

  XLA multiplies by a reciprocal, which is another number, where it sees that
  the divisor is a constant or one number for many. Of a choice that depends on
  x it sees neither; an infinity or NaN by 1 is what it is by any scale. (An
  optimisation barrier it removes too early.) On a GPU its float32 quotient is
  within 2 ulp even so.

  Attributes:
    branches: See `Arithmetic`.
    nearest: Whether a GPU's quotients are put right, some 40 operations each.
  """

  branches: bool = False
  nearest: bool = True

  native_exp2 = False

  def divide(self, x: jax.Array, y: jax.Array) -> jax.Array:
    """See `Arithmetic`."""
    quotient = x / jnp.where(x < jnp.inf, y, 1.0)
    exact = x.dtype != jnp.float32 or target_device().platform != "gpu"
    if exact or not self.nearest:
      return quotient
    return nearest_quotient(x, y, quotient)

  def divide_by(self, x: jax.Array, y: float) -> jax.Array:
    """See `Arithmetic`."""
    return self.divide(x, jnp.asarray(y, x.dtype))

  def divide_within(self, x: jax.Array, y: jax.Array, largest: float) -> jax.Array:
    """See `Arithmetic`."""
    return _within(self.divide(x, y), largest)

  def round_even(self, x: jax.Array) -> jax.Array:
    """See `Arithmetic`."""
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)

  def narrow(self, x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """See `Arithmetic`."""
    return narrowed(x, dtype)

  def after(self, x: jax.Array, number: jax.Array) -> jax.Array:
    """See `Arithmetic`; XLA has no registers to spare."""
    del number
    return x


@dataclasses.dataclass(frozen=True)
class PtxArithmetic(JaxFunctions):
  """In a kernel that Triton compiles: the instructions themselves, float32 only.

  Attributes:
    branches: See `Arithmetic`.
  """

  branches: bool = True

  native_exp2 = False

  def _instruction(self, text: str, *operands: jax.Array) -> jax.Array:
    """Instructions, f32 in and out, for each element; of numbers of a row that of all elements."""
    like = operands[0]
    (out,) = plgpu_triton.elementwise_inline_asm(
      text,
      args=[jnp.broadcast_to(one, like.shape) for one in operands],
      constraints=",".join(["=f", *["f"] * len(operands)]),
      pack=1,
      result_shape_dtypes=[jax.ShapeDtypeStruct(like.shape, like.dtype)],
    )
    return out

  def divide(self, x: jax.Array, y: jax.Array) -> jax.Array:
    """See `Arithmetic`."""
    return self._instruction("div.rn.f32 $0, $1, $2;", x, y)

  def divide_by(self, x: jax.Array, y: float) -> jax.Array:
    """See `Arithmetic`."""
    return self.divide(x, jnp.full(x.shape, y, x.dtype))

  def divide_within(self, x: jax.Array, y: jax.Array, largest: float) -> jax.Array:
    """See `Arithmetic`."""
    return _within(self.divide(x, y), largest)

  def round_even(self, x: jax.Array) -> jax.Array:
    """See `Arithmetic`."""
    return self._instruction("cvt.rni.f32.f32 $0, $1;", x)

  def narrow(self, x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """See `Arithmetic`."""
    return x.astype(dtype).astype(x.dtype)

  def after(self, x: jax.Array, number: jax.Array) -> jax.Array:
    """See `Arithmetic`."""
    del number
    return x


@dataclasses.dataclass(frozen=True)
class SmArithmetic(PtxArithmetic):
  """The same on an SM, where what all elements of a row share is computed once.

  div.rn takes 9 instructions and a reciprocal for each element, and beyond a
  hundred where the numerator is 0, as all masked ones are.
  """

  native_exp2 = True

  def exp2(self, x: jax.Array) -> jax.Array:
    """See `Functions`: without what a subnormal number would take, 3 instructions each of some 45.

    swiglu of 1 x 111 with its gradients takes an H200 1.68 us so and 1.71 without, of 8 x 111 1.67
    and 1.70, of 1 x 5000 1.78 and 1.81, to the same bits.
    """
    return self._instruction("ex2.approx.ftz.f32 $0, $1;", x)

  def rsqrt(self, x: jax.Array) -> jax.Array:
    """See `Functions`, and `exp2`."""
    return self._instruction("rsqrt.approx.ftz.f32 $0, $1;", x)

  def divide_within(self, x: jax.Array, y: jax.Array, largest: float) -> jax.Array:
    """See `Arithmetic`: 6 instructions an element.

    With y·2^k = m in [2, 4) it is x·2^k / m, by `refined_quotient` with the reciprocal of
    m rounded to nearest. Remainders keep their bits where x·2^k is above 2^-100, and below
    that all codes are 0; they are taken with the sign that leaves a zero its own. Clamped
    before: nothing overflows on the way.
    """
    mantissa_bits = jnp.int32(23)
    exponent = lax.shift_right_logical(lax.bitcast_convert_type(y, jnp.int32), mantissa_bits)
    # the biased exponent of 2^k; that of a subnormal y is 2^127
    of_power = jnp.minimum(255 - exponent, 254)
    power = lax.bitcast_convert_type(lax.shift_left(of_power, mantissa_bits), y.dtype)
    divisor = y * power
    of_row = (power, divisor, self.divide(jnp.ones_like(divisor), divisor), divisor * largest)
    return self._instruction(_QUOTIENT_WITHIN, x, *of_row)

  def after(self, x: jax.Array, number: jax.Array) -> jax.Array:
    """See `Arithmetic`: a move that has `number` for an operand that it does not use."""
    pack = 4 // x.dtype.itemsize
    if x.size % pack:
      # a single number: Triton packs whole registers only, and there is nothing to load ahead
      return x
    (out,) = plgpu_triton.elementwise_inline_asm(
      "mov.b32 $0, $1;",
      args=(x, jnp.broadcast_to(number, x.shape)),
      constraints=",".join(["=r", "r", *["r"] * pack]),
      pack=pack,
      result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
    )
    return out


def refined_quotient(x: str, y: str, reciprocal: str) -> str:
  """PTX of $0 = x / y for codes, from 1/y, in registers a, q, e: a quotient and its remainder.

  z = x / y, and all numbers beside it, exact or with one rounding, δ <= 2^-24: q is within
  2δ·z of z, and q + (x - q·y)/y, of which the remainder has one rounding and 1/y another, within
  4δ²·z = 2^-46·z. So $0 is the float32 number nearest to z unless z lies that near to the middle
  of two, and it is one of the two in any case. A code, a rounding to at most 7 bits, sees which
  only where one of them is halfway between two codes, a number of at most 8 bits. The quotients
  of float32 numbers that are so near to a middle beside one of those are few, and of each $0 is
  the nearest: the tests go through all of them.

  With the remainder taken twice $0 would be the nearest for every z. H200, us, twice and once:
  silu(gate)·up 1024 x 12288 with a fixed scale 16.7 and 15.6, where a stream of the same bytes
  takes 16.4, 1024 x 11008 with scales of rows 15.8 and 15.1.
  """
  return f"""  mul.rn.f32 q, {x}, {reciprocal};
  neg.f32 a, {x};
  fma.rn.f32 e, q, {y}, a;
  neg.f32 e, e;
  fma.rn.f32 $0, e, {reciprocal}, q;"""


# $1 = x, $2 = 2^k, $3 = m, $4 = 1/m, $5 the limit; a, q, e: x·2^k, quotient, remainder
_QUOTIENT_WITHIN = f"""{{
  .reg .f32 a, q, e;
  mul.rn.f32 a, $1, $2;
  min.NaN.f32 a, a, $5;
  neg.f32 q, $5;
  max.NaN.f32 a, a, q;
{refined_quotient("a", "$3", "$4")}
}}"""


def _within(x: jax.Array, largest: float) -> jax.Array:
  """x in [-largest, largest]; the comparisons let NaN pass."""
  return jnp.where(x > largest, largest, jnp.where(x < -largest, -largest, x))


def nearest_quotient(x: jax.Array, y: jax.Array, approximate: jax.Array) -> jax.Array:
  """x / y rounded to nearest even, of float32 x and y > 0 whose quotient is a normal number.

  The quotient q of the significands is refined once, which makes it one of the
  two numbers beside the exact one. Its remainder is then exact, and decides
  between q and its neighbour; no quotient of two numbers lies halfway.

  Args:
    x: Any numbers.
    y: Numbers that broadcast to x's shape.
    approximate: x / y; the result where x or y is 0, subnormal or not finite.
  """
  (a, x_exponent), (b, y_exponent) = _significand(x), _significand(jnp.broadcast_to(y, x.shape))
  q = _quotient(a, b)
  q += _remainder(a, b, q) / b
  remainder = _remainder(a, b, q)
  bits = lax.bitcast_convert_type(q, jnp.int32)
  beside = lax.bitcast_convert_type(bits + jnp.where(remainder < 0, -1, 1), jnp.float32)
  q = jnp.where(2.0 * jnp.abs(remainder) > b * jnp.abs(beside - q), beside, q)
  # in two steps, as the power alone may be out of range
  exponent = x_exponent - y_exponent
  half = exponent >> 1
  scaled = q * _power_of_two(half) * _power_of_two(exponent - half)
  normal = (x_exponent > 0) & (x_exponent < 255) & (y_exponent > 0) & (y_exponent < 255)
  return jnp.where(normal, jnp.where(x < 0, -scaled, scaled), approximate)


def _quotient(a: jax.Array, b: jax.Array) -> jax.Array:
  """a / b within 2 ulp."""
  return a / b


def _significand(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """|x| of float32 as a number in [1, 2) and its exponent, biased by 127."""
  bits = lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
  one = jnp.int32(127 << 23)
  return lax.bitcast_convert_type((bits & 0x7FFFFF) | one, jnp.float32), bits >> 23


def _power_of_two(exponent: jax.Array) -> jax.Array:
  """2^exponent, float32, exponent from -126 to 127."""
  return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)


def _remainder(a: jax.Array, b: jax.Array, q: jax.Array) -> jax.Array:
  """a - q·b: q and b in halves of 12 bits, whose products are exact; contracted or not."""

  def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    bits = lax.bitcast_convert_type(x, jnp.int32) & ~0xFFF
    high = lax.bitcast_convert_type(bits, jnp.float32)
    return high, x - high

  (q_high, q_low), (b_high, b_low) = halves(q), halves(b)
  return (((a - q_high * b_high) - q_high * b_low) - q_low * b_high) - q_low * b_low


XLA = XlaArithmetic()
INTERPRETED = XlaArithmetic(branches=True)
# as people write it: what ours is measured beside
AS_WRITTEN = XlaArithmetic(nearest=False)
SM = SmArithmetic()
_compiled: contextvars.ContextVar[PtxArithmetic] = contextvars.ContextVar("compiled", default=SM)


def in_kernel(*, interpreted: bool) -> Arithmetic:
  """That of a portable kernel."""
  return INTERPRETED if interpreted else _compiled.get()


@contextlib.contextmanager
def straight_line() -> Iterator[None]:
  """Kernels traced inside take one way for all values, as the route to Ascend needs."""
  token = _compiled.set(PtxArithmetic(branches=False))
  try:
    yield
  finally:
    _compiled.reset(token)
