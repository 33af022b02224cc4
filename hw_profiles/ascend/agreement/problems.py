"""A recorded case as the planner's problem and config."""

from typing import Any

from hw_profiles.ascend.agreement.rows import Case
from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.matmul.config import MatmulConfig
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import (
  QuantizeRowsProblem,
  RmsNormProblem,
  SwigluProblem,
  SwigluQuantizeProblem,
  TransposeProblem,
)

_ROW_PROBLEMS: dict[str, Any] = {
  "swiglu": SwigluProblem,
  "rms_norm": RmsNormProblem,
  "transpose": TransposeProblem,
}
_CODE_PROBLEMS: dict[str, Any] = {
  "quantize_rows": QuantizeRowsProblem,
  "swiglu_quantize": SwigluQuantizeProblem,
}


def planned_as(case: Case) -> tuple[Any, Any]:
  """The problem and the config that `hw_profiles.plan` takes.

  Raises:
    ValueError: the planner has no such op.
  """
  config: dict[str, Any] = dict(case.config)
  shapes: dict[str, Any] = dict(case.shapes)
  if case.op in ("matmul", "gated_matmul"):
    gated = case.op == "gated_matmul"
    problem = MatmulProblem(
      **shapes,
      dtype=case.dtype,
      activation=case.options.get("activation", "silu" if gated else None),
      products=2 if gated else 1,
    )
    return problem, MatmulConfig(**config)
  if case.op == "flash_attention":
    causal = case.options.get("is_causal", False)
    return (
      AttentionProblem(**shapes, causal=causal, dtype=case.dtype),
      AttentionConfig(**config),
    )
  rows, columns = case.shapes["rows"], case.shapes["columns"]
  if case.op in _CODE_PROBLEMS:
    code = case.options.get("code_dtype", "int8")
    return _CODE_PROBLEMS[case.op](rows, columns, case.dtype, code), RowConfig(**config)
  if case.op in _ROW_PROBLEMS:
    return _ROW_PROBLEMS[case.op](rows, columns, case.dtype), RowConfig(**config)
  raise ValueError(f"op={case.op!r}: the planner has no such op")
