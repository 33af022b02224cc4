"""Why a verdict differs from the compiler's: one sentence a class of cases."""

from hw_profiles.ascend.agreement.compare import Comparison
from hw_profiles.ascend.targets import get_target

UNEXPLAINED = "not explained"


def planner_reason(one: Comparison) -> str:
  """Why the planner disagrees with the compiler; "" where it agrees."""
  if one.planner_agrees:
    return ""
  if one.planner.fits:
    return _compiler_wants_more(one)
  return _planner_wants_more(one)


def _compiler_wants_more(one: Comparison) -> str:
  case, outcome = one.row.case, one.row.outcome
  is_950 = get_target(case.target).is_950
  space = outcome.overflow_space
  if space == "UB" and case.op in ("matmul", "gated_matmul"):
    if is_950:
      return (
        "UB: the 950's compiler has the cube core write the whole float32 tile to UB, where it is"
        " rounded or activated; the planner has FixPipe round it on its way out, or works in slabs"
      )
    return (
      "UB: the compiler keeps a vector core's whole share of the tile and its temporaries; the"
      " planner activates it in slabs that fit"
    )
  if space == "UB":
    return (
      "UB: the compiler materialises each float32 intermediate of the block; the planner counts"
      " what an implementation has to keep"
    )
  if space == "L1" and case.op == "flash_attention":
    return (
      "L1: the compiler keeps Q, whole blocks of K and V and the weights P at once; the planner"
      " streams K and V through L1 in slices"
    )
  if space == "L0C" and is_950 and case.multi_buffer:
    return "L0C: with double buffering the 950's compiler keeps two of each accumulator"
  if space == "L0C":
    return "L0C: the compiler keeps both accumulators whole"
  if outcome.double_buffering == "dropped" or one.partly_buffered:
    return (
      "double buffering: the compiler gave it up for lack of memory, also of a vector core's, and"
      " the tile counts as not fitting as asked for"
    )
  return f"{space or 'verdict'}: {UNEXPLAINED}"


def _planner_wants_more(one: Comparison) -> str:
  missing = one.planner.binding[0] if one.planner.binding else ""
  if missing in ("L0A", "L0B"):
    return f"{missing}: this library's own limit; the compiler neither plans nor checks it"
  if missing == "L1":
    return (
      "L1: the compiler lets operands share addresses that are not alive together; the planner"
      " keeps them apart, so that all can be loaded ahead"
    )
  if missing == "L0C":
    return (
      "L0C: the compiler lets the accumulators of an attention share addresses, or halves a block"
      " of keys"
    )
  if missing == "UB":
    return (
      "UB: the planner holds two of each stream, so that copies overlap with work; the compiler"
      " double buffers loops only, and this block is none"
    )
  if "unsupported" in one.planner.shortfall_kinds:
    return f"{missing}: the planner has no rate for it"
  return f"{missing}: {UNEXPLAINED}"


def model_reason(one: Comparison) -> str:
  """Why the model of the compiler disagrees with it; "" where it agrees."""
  if one.model_agrees:
    return ""
  exceeded = one.needs.exceeded(get_target(one.row.case.target))
  if one.model_fits:
    space = one.row.outcome.overflow_space or "double buffering"
    return f"{space}: the compiler wants more than its constants for this op say"
  if exceeded[0] == "L1":
    return "L1: the compiler lets operands share addresses that are not alive together"
  return f"{exceeded[0]}: the compiler gets by with less than its constants for this op say"
