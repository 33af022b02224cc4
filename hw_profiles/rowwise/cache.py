"""What of a row-wise op's traffic L2 serves."""

from hw_profiles.cost.l2_reuse import L2_OPERAND_FRACTION
from hw_profiles.rowwise.tiling import RowTiling


def is_warm(*, asked: bool, input_bytes: int, output_bytes: int, l2_bytes: int) -> bool:
  """Whether operands are in L2 from the start and results stay there.

  Operands may fill L2_OPERAND_FRACTION of it, results the rest. A matrix
  larger than that, used again and again, evicts itself before it is read again.

  Args:
    asked: The problem's `warm_l2`.
    input_bytes: Operands.
    output_bytes: Results.
    l2_bytes: L2 capacity.
  """
  kept = l2_bytes * L2_OPERAND_FRACTION
  return asked and input_bytes <= kept and output_bytes <= l2_bytes - kept


def is_reread_from_l2(*, between_bytes: int, l2_bytes: int) -> bool:
  """Whether the second read of a datum hits, `between_bytes` having passed since the first."""
  return between_bytes <= l2_bytes * L2_OPERAND_FRACTION


def warm_note(memory: str) -> str:
  """That a launch found everything in L2 and left it there; `memory` is "DRAM" or "HBM"."""
  return f"operands and results stay in L2: {memory} is not touched"


def cache_notes(
  tiling: RowTiling, memory: str, *, warm: bool, reread_from_l2: bool
) -> tuple[str, ...]:
  """What L2 does for the launches of a tile, where it is not simply passed through."""
  if warm:
    return (warm_note(memory),)
  if tiling.form not in ("walked_twice", "split"):
    return ()
  return (f"the second read comes from {'L2' if reread_from_l2 else memory}",)
