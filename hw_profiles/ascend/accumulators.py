"""The second change: products that add into their accumulator.

Pallas writes `acc + dot(x, y, 0)`. Left so, a 910 adds on its vector cores, by
way of a workspace in GM: a pure matmul becomes a mixed kernel. Triton's own
`combine` pass writes `dot(x, y, acc)`; here is the check that it did.
"""

import collections
import re

from hw_profiles.ascend.errors import UnsupportedIrError
from hw_profiles.ascend.ssa_text import Statement, statements

_DOT = re.compile(r"^tt\.dot (%[\w#]+), (%[\w#]+), (%[\w#]+)\b")
_ZERO = re.compile(r"^arith\.constant (?:dense<)?(?:0\.0+e\+00|0)>? :")


def _is_zero(statement: Statement | None) -> bool:
  if statement is None:
    return False
  if statement.operation == "tt.splat":
    return _is_zero(statement.operands.get(statement.names()[0]))
  return bool(_ZERO.match(statement.text))


def _is_fresh_product(statement: Statement | None) -> bool:
  """Whether it is a product whose accumulator is zero."""
  if statement is None or not statement.operation.startswith("tt.dot"):
    return False
  dot = _DOT.match(statement.text)
  if dot is None:
    raise UnsupportedIrError(f"a product in an unknown form: {statement.text}")
  return _is_zero(statement.operands.get(dot[3]))


def unfolded_accumulators(triton_ir: str) -> tuple[str, ...]:
  """The additions of a product with a zero accumulator, as written.

  A product that something else uses too stays as it is, and is not among them.

  Raises:
    UnsupportedIrError: a product in a form that the check does not read.
  """
  everything = statements(triton_ir)
  uses = collections.Counter(
    operand for statement in everything for operand in statement.operands.values()
  )
  return tuple(
    f"{statement.result} = {statement.text}"
    for statement in everything
    if statement.operation in ("arith.addf", "arith.addi")
    and any(
      uses[operand] == 1 and _is_fresh_product(operand) for operand in statement.operands.values()
    )
  )


def check_folded(triton_ir: str) -> None:
  """Raises UnsupportedIrError where a product's accumulator was not folded in."""
  left = unfolded_accumulators(triton_ir)
  if left:
    raise UnsupportedIrError(
      "a product that is added to its accumulator afterwards, which Triton's passes did not"
      f" fold into it: {left[0]}"
    )
