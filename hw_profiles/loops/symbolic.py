"""Runs a nest on expressions, to tell what two nests compute of the same inputs."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from hw_profiles.loops.arithmetic import Index
from hw_profiles.loops.nest import Combine
from hw_profiles.loops.operations import ScalarOperation

_SHOWN_TERMS = 3  # of a sum, in messages


@dataclasses.dataclass(frozen=True)
class Expression:
  """What an element was computed from.

  Attributes:
    kind: "input", "apply", "sum", "max" or "round".
    name: Array and index of an input, operation or format.
    parts: What it was computed of, in order.
  """

  kind: str
  name: str
  parts: tuple["Expression", ...] = ()
  index: Index = ()

  def __str__(self) -> str:
    if self.kind == "input":
      return f"{self.name}[{', '.join(map(str, self.index))}]"
    parts = [str(part) for part in self.parts]
    if self.kind in ("sum", "max"):
      if len(parts) > _SHOWN_TERMS:
        parts = [*parts[:_SHOWN_TERMS], "..."]
      return " + ".join(parts) if self.kind == "sum" else f"max({', '.join(parts)})"
    if self.kind == "apply" and self.name == "multiply":
      return "·".join(f"({part})" if " + " in part else part for part in parts)
    return f"{self.name}({', '.join(parts)})"


class Expressions:
  """The arithmetic whose values are `Expression`s."""

  def initial(self, array: str, index: Index) -> Expression:
    """The input itself: what a read finds that comes before any write."""
    return Expression("input", array, (), index)

  def apply(self, operation: ScalarOperation, values: Sequence[Expression]) -> Expression:
    """The operation of its operands; a copy is its operand."""
    if operation.name == "copy":
      return values[0]
    return Expression("apply", operation.name, tuple(values))

  def combine(self, kind: Combine, accumulated: Expression, value: Expression) -> Expression:
    """One more term; sums associate to the left, so a first term may be a sum."""
    terms = accumulated.parts if accumulated.kind == kind else (accumulated,)
    return Expression(kind, "", (*terms, value))

  def round(self, name: str, value: Expression) -> Expression:
    """The value, rounded; twice to one format is once."""
    if value.kind == "round" and value.name == name:
      return value
    return Expression("round", name, (value,))


def leaves(expression: Expression) -> Iterator[tuple[str, Index]]:
  """Inputs that an expression depends on, each time it uses them."""
  if expression.kind == "input":
    yield expression.name, expression.index
  for part in expression.parts:
    yield from leaves(part)


def _flat(kind: str, parts: Iterable[Expression]) -> list[Expression]:
  return [term for part in parts for term in (part.parts if part.kind == kind else (part,))]


def _maximum(parts: Iterable[Expression]) -> Expression:
  """A maximum of different terms, sorted: it is exact in any order."""
  terms = sorted(set(_flat("max", parts)), key=repr)
  return terms[0] if len(terms) == 1 else Expression("max", "", tuple(terms))


def mathematics(expression: Expression, *, rounded: bool) -> Expression:
  """A form in which equal mathematics is equal: sums flattened and sorted.

  Args:
    expression: What is brought into that form.
    rounded: Whether roundings stay.
  """
  if expression.kind == "round" and not rounded:
    return mathematics(expression.parts[0], rounded=False)
  parts = [mathematics(part, rounded=rounded) for part in expression.parts]
  if expression.kind == "max":
    return _maximum(parts)
  if expression.kind == "sum":
    return Expression("sum", "", tuple(sorted(_flat("sum", parts), key=repr)))
  return Expression(expression.kind, expression.name, tuple(parts), expression.index)


def in_order(expression: Expression) -> Expression:
  """A form in which equal results are equal bit by bit: only maxima are sorted."""
  parts = tuple(in_order(part) for part in expression.parts)
  if expression.kind == "max":
    return _maximum(parts)
  return Expression(expression.kind, expression.name, parts, expression.index)
