"""Affine index expressions and array accesses, written as text: "A[i, 2*j + r]"."""

import ast
import dataclasses
from collections.abc import Mapping

Interval = tuple[int, int]
"""Lowest and highest value; empty where the highest is the smaller."""


@dataclasses.dataclass(frozen=True)
class Affine:
  """Σ coefficient·axis + constant.

  Attributes:
    terms: Axis and coefficient, sorted by axis, no coefficient 0.
    constant: What is added.
  """

  terms: tuple[tuple[str, int], ...] = ()
  constant: int = 0

  @classmethod
  def of(cls, coefficients: Mapping[str, int], constant: int = 0) -> "Affine":
    """From a mapping of axes to coefficients."""
    return cls(tuple(sorted((a, c) for a, c in coefficients.items() if c)), constant)

  @property
  def axes(self) -> tuple[str, ...]:
    """Axes with a coefficient."""
    return tuple(axis for axis, _ in self.terms)

  def plus(self, other: "Affine", factor: int = 1) -> "Affine":
    """self + factor·other."""
    coefficients = dict(self.terms)
    for axis, coefficient in other.terms:
      coefficients[axis] = coefficients.get(axis, 0) + factor * coefficient
    return Affine.of(coefficients, self.constant + factor * other.constant)

  def substitute(self, axis: str, value: "Affine") -> "Affine":
    """The expression with `value` in place of `axis`."""
    rest = Affine.of({a: c for a, c in self.terms if a != axis}, self.constant)
    return rest.plus(value, dict(self.terms).get(axis, 0))

  def at(self, values: Mapping[str, int]) -> int:
    """Its value where every axis has the value given."""
    return self.constant + sum(coefficient * values[axis] for axis, coefficient in self.terms)

  def interval(self, ranges: Mapping[str, Interval]) -> Interval:
    """Its lowest and highest value over a box of axis ranges."""
    lowest = highest = self.constant
    for axis, coefficient in self.terms:
      ends = sorted(coefficient * end for end in ranges[axis])
      lowest, highest = lowest + ends[0], highest + ends[1]
    return lowest, highest

  def __str__(self) -> str:
    parts = [axis if c == 1 else f"{c}*{axis}" for axis, c in self.terms]
    if self.constant or not parts:
      parts.append(str(self.constant))
    return " + ".join(parts)


@dataclasses.dataclass(frozen=True)
class Access:
  """One element of an array, chosen by an affine index in each dimension.

  Attributes:
    array: Name of the array.
    indices: One expression a dimension.
  """

  array: str
  indices: tuple[Affine, ...]

  def at(self, values: Mapping[str, int]) -> tuple[int, ...]:
    """The index where every axis has the value given."""
    return tuple(index.at(values) for index in self.indices)

  def substitute(self, axis: str, value: Affine) -> "Access":
    """The access with `value` in place of `axis`."""
    return Access(self.array, tuple(index.substitute(axis, value) for index in self.indices))

  @property
  def axes(self) -> tuple[str, ...]:
    """Axes that any index uses."""
    return tuple(dict.fromkeys(axis for index in self.indices for axis in index.axes))

  def __str__(self) -> str:
    return f"{self.array}[{', '.join(map(str, self.indices))}]"


def _affine(node: ast.expr, text: str) -> Affine:
  match node:
    case ast.Name(id=name):
      return Affine(((name, 1),))
    case ast.Constant(value=int(value)) if not isinstance(value, bool):
      return Affine((), value)
    case ast.UnaryOp(op=ast.USub(), operand=operand):
      return Affine().plus(_affine(operand, text), -1)
    case ast.BinOp(op=ast.Add(), left=left, right=right):
      return _affine(left, text).plus(_affine(right, text))
    case ast.BinOp(op=ast.Sub(), left=left, right=right):
      return _affine(left, text).plus(_affine(right, text), -1)
    case ast.BinOp(op=ast.Mult(), left=left, right=right):
      first, second = _affine(left, text), _affine(right, text)
      if not first.terms:
        return Affine().plus(second, first.constant)
      if not second.terms:
        return Affine().plus(first, second.constant)
  raise ValueError(
    f"access={text!r}: {ast.unparse(node)!r} is not affine; expected sums of axes with integer"
    " factors, for example 'A[i, 2*j + r - 1]'"
  )


def parse_access(text: str) -> Access:
  """Reads "A[i, 2*j + r]".

  Raises:
    ValueError: the text is no array with affine indices.
  """
  try:
    node = ast.parse(text.strip(), mode="eval").body
  except SyntaxError:
    node = None
  match node:
    case ast.Subscript(value=ast.Name(id=array), slice=ast.Tuple(elts=indices)):
      return Access(array, tuple(_affine(index, text) for index in indices))
    case ast.Subscript(value=ast.Name(id=array), slice=index):
      return Access(array, (_affine(index, text),))
  raise ValueError(f"access={text!r}: expected an array with its indices, for example 'A[i, j]'")
