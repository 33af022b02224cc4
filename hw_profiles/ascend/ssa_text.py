"""Reads MLIR text, in the form that the compilers print, as statements in scopes.

Sibling regions reuse value names, so a name means something only where it stands.
"""

import dataclasses
import re
from collections.abc import Iterator

from hw_profiles.ascend.errors import UnsupportedIrError

_RESULT = re.compile(r"^(%[\w$.-]+)(?::\d+)? = (.*)$")
_NAME = re.compile(r"%[\w$.-]+")
_FUNCTION = re.compile(r"^(?:\w+\.)?func (?:private |public )?@([\w$.-]+)")


@dataclasses.dataclass(frozen=True, eq=False)
class Statement:
  """One operation.

  Attributes:
    function: The function that it is in; "" outside of one.
    result: What it defines, "%3", or "".
    text: What is written after the result.
    operands: The statements that define the names in `text`; an argument of a
      function or a block is not among them.
  """

  function: str
  result: str
  text: str
  operands: dict[str, "Statement"] = dataclasses.field(repr=False)

  @property
  def operation(self) -> str:
    """The operation's name, "memref.cast"."""
    words = re.match(r'"?([\w.$]+)', self.text)
    return words[1] if words else ""

  def names(self) -> list[str]:
    """The names in `text`, in order, each as often as it is written."""
    return _NAME.findall(self.text)


def _lines(text: str) -> Iterator[str]:
  for line in text.splitlines():
    stripped = re.sub(r" loc\(.*\)$", "", line.strip())
    if stripped and not stripped.startswith(("#", "//", "^")):
      yield stripped


def statements(text: str) -> list[Statement]:
  """Every operation of a module, in order.

  Raises:
    UnsupportedIrError: its braces do not balance.
  """
  found: list[Statement] = []
  scopes: list[dict[str, Statement]] = [{}]
  functions = [""]
  for line in _lines(text):
    if line.startswith("}"):
      if len(scopes) == 1:
        raise UnsupportedIrError(f"unbalanced braces at {line!r}")
      scopes.pop()
      functions.pop()
    opens = line.endswith("{")
    function = _FUNCTION.match(line)
    inside = function[1] if function else functions[-1]
    if not line.startswith("}"):
      match = _RESULT.match(line)
      result, body = (match[1], match[2]) if match else ("", line)
      visible = {}
      for name in set(_NAME.findall(body)):
        for scope in reversed(scopes):
          if name in scope:
            visible[name] = scope[name]
            break
      statement = Statement(inside, result, body, visible)
      found.append(statement)
      if result:
        scopes[-1][result] = statement
    if opens:
      scopes.append({})
      functions.append(inside)
  if len(scopes) != 1:
    raise UnsupportedIrError(f"unbalanced braces: {len(scopes) - 1} left open at the end")
  return found
