"""How a predicted time adds up from its parts, so that it can be recomputed by hand.

A `Term` is a time with the expression that gives it (terms of one name are equal):

    added      t = t1 + t2 + ...          one after another
    longest    t = max(t1, t2, ...)       beside one another
    repeated   t = n1 · n2 · ... · t1     a step of many steps, in a tile of many tiles
    shared     t = t1 / n                 n of them in flight

A time model builds its total from these, so what is printed is what was computed.
"""

import math
from typing import Literal, NamedTuple

How = Literal["", "added", "longest", "repeated", "shared"]

# Digits of a printed time. A prediction is a sum of products of few of them, each off by at
# most half a unit of the last digit: recomputed from the text it is right to 1e-4.
_DIGITS = 5


class Term(NamedTuple):
  """A time, and what it is made of.

  Attributes:
    name: What takes it.
    us: The time.
    how: The operation; empty where the time is a rate's or the profile's.
    parts: What the operation is of.
    counts: Of "repeated" the factors, of "shared" the divisor, each with what it counts.
  """

  name: str
  us: float
  how: How = ""
  parts: tuple["Term", ...] = ()
  counts: tuple[tuple[float, str], ...] = ()

  def lines(self) -> tuple[str, ...]:
    """`name time = expression` of the total, then of every part that has one; in us.

    A time has five digits. What takes no time is left out of sums and maxima. Of
    several kernels a line begins with its kernel's label, which holds for the whole
    line.
    """
    plain = self._plain()
    if not plain.how:
      # a total of one part says which
      return (f"{self._named()} = {self._shown()[0]._named()}",) if self.how else ()
    own = f"{plain._named()} = {plain._expression()}"
    below = [line for part in plain._shown() if part._plain().how for line in part.lines()]
    # a part that several have is explained once
    return tuple(dict.fromkeys((own, *below)))

  def labelled(self, label: str) -> "Term":
    """The same with `label: ` before every name, for one of several kernels."""
    parts = tuple(part.labelled(label) for part in self.parts)
    return self._replace(name=f"{label}: {self.name}", parts=parts)

  def _shown(self) -> tuple["Term", ...]:
    return tuple(part for part in self.parts if part.us) or self.parts[:1]

  def _plain(self) -> "Term":
    """Without operations that change nothing: sums and maxima of one, a share of one."""
    one = self
    while one.how and len(one._shown()) == 1 and not one._counts():
      (part,) = one._shown()
      one = part._replace(name=self.name)
    return one

  def _counts(self) -> tuple[tuple[float, str], ...]:
    """Those that say something: one tile does, undivided does not."""
    silent = [(1, "")] if self.how == "repeated" else [(1, of) for _, of in self.counts]
    return tuple(x for x in self.counts if x not in silent)

  def _named(self, label: str = "") -> str:
    return f"{self.name.removeprefix(label)} {_number(self.us)}"

  def _expression(self) -> str:
    label = "".join(self.name.rpartition(": ")[:2])
    operands = [part._named(label) for part in self._shown()]
    counts = [_counted(number, of) for number, of in self._counts()]
    if self.how == "added":
      return " + ".join(operands)
    if self.how == "longest":
      return f"max({', '.join(operands)})"
    if self.how == "repeated":
      return " x ".join((*counts, *operands))
    return " / ".join((*operands, *counts))


def _counted(number: float, of: str) -> str:
  """`3 tiles`, `1 tile`, `0.3`."""
  return f"{_number(number)} {of.removesuffix('s') if number == 1 else of}".rstrip()


def _number(value: float) -> str:
  """Whole numbers as they are, others with up to five digits and no exponent."""
  if value == int(value):
    return f"{value:,.0f}"
  decimals = max(_DIGITS - 1 - math.floor(math.log10(abs(value))), 0)
  text = f"{value:,.{decimals}f}"
  return text.rstrip("0").rstrip(".") if decimals else text


def leaf(name: str, us: float) -> Term:
  """A time that a rate or the profile gives."""
  return Term(name, us)


def added(name: str, *parts: Term) -> Term:
  """One after another."""
  return Term(name, sum([part.us for part in parts]), "added", parts)


def longest(name: str, *parts: Term) -> Term:
  """Beside one another, at least one."""
  return Term(name, max([part.us for part in parts]), "longest", parts)


def repeated(name: str, part: Term, *counts: tuple[float, str]) -> Term:
  """`part` as often as the product of the counts, each `(number, what it counts)`."""
  return Term(
    name, math.prod([count for count, _ in counts]) * part.us, "repeated", (part,), counts
  )


def shared(name: str, part: Term, count: float, of: str) -> Term:
  """`part` divided among `count` that are in flight."""
  return Term(name, part.us / count, "shared", (part,), ((count, of),))
