"""Why a verdict differs from the compiler's: one sentence a class of cases."""

from hw_profiles.ascend.agreement.compare import Comparison

UNEXPLAINED = "not explained"


def planner_reason(one: Comparison) -> str:
  """Why the planner disagrees with the compiler; "" where it agrees."""
  if one.planner_agrees:
    return ""
  return _compiler_wants_more(one) if one.planner.fits else _planner_wants_more(one)


def _compiler_wants_more(one: Comparison) -> str:
  outcome = one.row.outcome
  if outcome.overflow_space:
    lacking = outcome.needed_bits // 8 - one.planner.needed_bytes(outcome.overflow_space)
    return (
      f"{outcome.overflow_space}: the compiler keeps {lacking} B more than the values that the"
      " planner lists for this op"
    )
  if outcome.double_buffering == "dropped" or one.partly_buffered:
    return "double buffering: the compiler gave it up, though all that the planner lists would fit"
  return UNEXPLAINED


def _planner_wants_more(one: Comparison) -> str:
  case = one.row.case
  missing = one.planner.binding[0] if one.planner.binding else ""
  if missing in ("L0A", "L0B"):
    return f"{missing}: this library's own limit; the compiler neither plans nor checks it"
  if missing == "UB" and case.op in ("rms_norm", "quantize_rows", "swiglu_quantize"):
    return (
      "UB: the compiler finds gaps between values of other sizes for what exceeds; the planner"
      " counts the gaps of tiles that did not fit"
    )
  if missing in ("L1", "L0C", "UB"):
    return f"{missing}: the compiler lets more values share addresses than the planner knows of"
  return f"{missing}: {UNEXPLAINED}"
