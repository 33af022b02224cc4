"""The arithmetic of `arithmetic.SmArithmetic` in a kernel that Mosaic GPU compiles."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.activations import JaxFunctions
from pallas_kernels.compat import ir, llvm, vector
from pallas_kernels.rowwise.arithmetic import SmArithmetic, refined_quotient

# $1 = x, $2 = y, $3 = 1/y
_QUOTIENT = f"""{{
  .reg .f32 a, q, e;
{refined_quotient("$1", "$2", "$3")}
}}"""


@dataclasses.dataclass(frozen=True)
class MosaicArithmetic(SmArithmetic):
  """Of blocks that a warpgroup has in registers, and of single numbers.

  Mosaic makes one instruction of `exp2` and `rsqrt` itself, where it may approximate.

  Attributes:
    branches: See `Arithmetic`.
    vector_size: Neighbours that a thread has of every block.
    ordinary: Whether `divide_within` gets rows without an infinity, each with the
      scale of its largest magnitude, and `is_ordinary` scales.
  """

  vector_size: int = 1
  ordinary: bool = False

  exp2 = JaxFunctions.exp2
  rsqrt = JaxFunctions.rsqrt

  def divide_within(self, x: jax.Array, y: jax.Array, largest: float) -> jax.Array:
    """See `SmArithmetic`: 3 instructions an element where rows are ordinary, 6 else.

    No quotient is then out of reach, and y needs no power of two: 1/y is a normal
    number, and remainders keep their bits where a quotient is above 2^-40, far below
    the first code that is not 0.
    """
    if not self.ordinary:
      return super().divide_within(x, y, largest)
    return self._instruction(_QUOTIENT, x, y, self.divide(jnp.ones_like(y), y))

  def _layout(self, x: jax.Array) -> Any:
    if not x.shape:
      return plgpu.Layout.WG_SPLAT(())
    return plgpu.Layout.WG_STRIDED(x.shape, vec_size=self.vector_size)

  def _instruction(self, text: str, *operands: jax.Array) -> jax.Array:
    """Instructions, f32 in and out, for each element of the first operand.

    The others are of its shape, or single numbers.
    """
    like = operands[0]
    layout = self._layout(like)

    @plgpu.inline_mgpu(
      arg_types=tuple(self._layout(one) for one in operands),
      return_type=plgpu.ShapeDtypeStruct(like.shape, jnp.float32, layout=layout),
    )
    def computed(_: Any, *arguments: Any) -> Any:
      first = arguments[0]
      f32 = ir.F32Type.get()
      constraints = ",".join(["=f", *["f"] * len(arguments)])

      def one(place: tuple[int, ...], i: int) -> Any:
        return llvm.inline_asm(f32, [_element(x, place, i) for x in arguments], text, constraints)

      registers = first.registers.copy()
      for place, register in np.ndenumerate(registers):
        if not isinstance(register.type, ir.VectorType):
          registers[place] = one(place, 0)
          continue
        (count,) = ir.VectorType(register.type).shape
        registers[place] = vector.from_elements(
          register.type, [one(place, i) for i in range(count)]
        )
      return mgpu.FragmentedArray(_registers=registers, _layout=first.layout, _is_signed=None)

    return computed(*operands)


def is_ordinary(scale: jax.Array) -> jax.Array:
  """Whether a quotient by this scale is exact without a power of two; see `MosaicArithmetic`."""
  return (scale >= 2.0**-60) & (scale <= 2.0**60)


def _element(x: Any, place: tuple[int, ...], i: int) -> Any:
  """The i-th element of a register of a block; a single number is every element."""
  if not x.shape:
    return x.registers.flat[0]
  return vector.extract(x.registers[place], dynamic_position=[], static_position=[i])
