"""From a measured row to the problems that the planner is asked."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from hw_profiles.planner.op_registry import registered
from hw_profiles.validation.measured import MeasuredRow


class NotComparable(Exception):  # noqa: N818 (an answer, which callers count, not an error)
  """Why a row cannot be compared with the planner as it is."""


@dataclasses.dataclass(frozen=True)
class Question:
  """One problem of a registered op.

  Attributes:
    op: The op's name.
    fields: Of its problem class.
  """

  op: str
  fields: Mapping[str, Any]


def _fields(row: MeasuredRow, **more: Any) -> dict[str, Any]:
  return {**row.shape, "dtype": row.dtype, **row.options, **more}


def _as_named(row: MeasuredRow) -> tuple[Question, ...]:
  """The row's op, its shape and options under the names of the problem's fields."""
  return (Question(row.op, _fields(row)),)


def _backward(row: MeasuredRow) -> tuple[Question, ...]:
  return (Question("flash_attention", _fields(row, backward=True)),)


def _forward_and_backward(row: MeasuredRow) -> tuple[Question, ...]:
  return (Question("flash_attention", _fields(row)), *_backward(row))


def _gated(row: MeasuredRow) -> tuple[Question, ...]:
  return (Question("matmul", _fields(row, products=2)),)


def _gated_unfused(row: MeasuredRow) -> tuple[Question, ...]:
  """Two products that are written out, and the activation of one times the other."""
  product = Question("matmul", _fields(row, activation=None))
  rows = row.shape["m"] * row.shape.get("batch", 1)
  finish = {"rows": rows, "columns": row.shape["n"], "dtype": row.dtype}
  return (product, product, Question("swiglu", finish))


def _quantized(row: MeasuredRow) -> tuple[Question, ...]:
  return (Question("matmul", _fields(row, scaled=True)),)


# those that are not one problem of the op they are called by
_QUESTIONS: Mapping[str, Callable[[MeasuredRow], tuple[Question, ...]]] = {
  "flash_attention_backward": _backward,
  "flash_attention_forward_backward": _forward_and_backward,
  "gated_matmul": _gated,
  "gated_matmul_unfused": _gated_unfused,
  "quantized_matmul": _quantized,
}


def problems(row: MeasuredRow) -> tuple[tuple[Any, Any], ...]:
  """The op models and the problems whose times, added up, the row measured.

  Raises:
    NotComparable: an op is not registered, or its problem cannot say what the row
      computed; nothing of the row is left out in silence.
  """
  models = {model.name: model for model in registered()}
  found = []
  for question in _QUESTIONS.get(row.op, _as_named)(row):
    model = models.get(question.op)
    if model is None:
      raise NotComparable(f"{question.op} is not planned")
    known = {field.name for field in dataclasses.fields(model.problem_class)}
    unknown = sorted(set(question.fields) - known)
    if unknown:
      raise NotComparable(f"{question.op} has no {', '.join(unknown)}")
    try:
      found.append((model, model.problem_class(**question.fields)))
    except ValueError as error:
      raise NotComparable(f"{question.op}: {error}") from None
  return tuple(found)
