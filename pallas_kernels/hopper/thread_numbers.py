"""Numbers of one thread inside `plgpu.inline_mgpu`, with Python's operators.

Index arithmetic that is written with operators alone then serves a kernel and NumPy alike.
"""

import dataclasses
from typing import Any

from jax.experimental.mosaic.gpu import utils as mgpu_utils

from pallas_kernels.compat import arith, ir


@dataclasses.dataclass(frozen=True)
class ThreadNumber:
  """An int32, or a truth value where it is compared.

  Attributes:
    value: As MLIR has it. At least 0 where it is divided.
  """

  value: Any

  def _with(self, operation: Any, other: "ThreadNumber | int") -> "ThreadNumber":
    i32 = ir.IntegerType.get_signless(32)
    right = other.value if isinstance(other, ThreadNumber) else mgpu_utils.c(other, i32)
    return ThreadNumber(operation(self.value, right))

  def _compared(self, how: Any, other: "ThreadNumber | int") -> "ThreadNumber":
    return self._with(lambda x, y: arith.cmpi(how, x, y), other)

  def __add__(self, other: "ThreadNumber | int") -> "ThreadNumber":
    return self._with(arith.addi, other)

  def __sub__(self, other: "ThreadNumber | int") -> "ThreadNumber":
    return self._with(arith.subi, other)

  def __mul__(self, other: "ThreadNumber | int") -> "ThreadNumber":
    return self._with(arith.muli, other)

  def __floordiv__(self, other: int) -> "ThreadNumber":
    return self._with(arith.divui, other)

  def __mod__(self, other: int) -> "ThreadNumber":
    return self._with(arith.remui, other)

  def __xor__(self, other: "ThreadNumber | int") -> "ThreadNumber":
    return self._with(arith.xori, other)

  def __and__(self, other: "ThreadNumber") -> "ThreadNumber":
    return self._with(arith.andi, other)

  def __lt__(self, other: "ThreadNumber | int") -> "ThreadNumber":
    return self._compared(arith.CmpIPredicate.slt, other)

  def __le__(self, other: "ThreadNumber | int") -> "ThreadNumber":
    return self._compared(arith.CmpIPredicate.sle, other)

  def __gt__(self, other: "ThreadNumber | int") -> "ThreadNumber":
    return self._compared(arith.CmpIPredicate.sgt, other)

  def __ge__(self, other: "ThreadNumber | int") -> "ThreadNumber":
    return self._compared(arith.CmpIPredicate.sge, other)
