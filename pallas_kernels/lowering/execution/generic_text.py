"""MLIR in generic form, read into operations: every operation has the same syntax there.

%r = "dialect.name"(%a, %b) <{properties}> ({regions}) {attributes} : (types) -> types
"""

import dataclasses
import functools
import re

_CLOSING = {"(": ")", "{": "}", "[": "]", "<": ">"}
_RESULTS = re.compile(r"(%[\w$.-]+)(?::(\d+))? = ")
_NAME = re.compile(r'"([\w.$]+)"')


@dataclasses.dataclass(eq=False)
class Region:
  """One block: the names of its arguments, and its operations."""

  arguments: list[str]
  operations: list["Operation"]


@dataclasses.dataclass(eq=False)
class Operation:
  """One operation.

  Attributes:
    name: "arith.addi".
    results: Names that it defines.
    operands: Names that it uses.
    attributes: Properties and attributes, as text.
    regions: Nested blocks; a region without one has no operations.
    operand_types: As text.
    result_types: As text.
  """

  name: str
  results: list[str]
  operands: list[str]
  attributes: str
  regions: list[Region]
  operand_types: list[str]
  result_types: list[str]

  @functools.cached_property
  def _integers(self) -> dict[str, list[int]]:
    found = re.findall(r"(\w+) = array<i\d+(?:: ([^>]*))?>", self.attributes)
    found += re.findall(r"(\w+) = \[([\d, -]*)\]", self.attributes)
    return {key: [int(part) for part in value.split(",")] if value else [] for key, value in found}

  def integers(self, key: str) -> list[int]:
    """The array attribute called `key`; empty where there is none."""
    return self._integers.get(key, [])

  @functools.cached_property
  def _words(self) -> dict[str, str]:
    enums = dict(re.findall(r"(\w+) = #[\w.]+<(?:\w+ )?<?(\w+)>", self.attributes))
    plain = dict(re.findall(r"(\w+) = ([@\w.+-]+)", self.attributes))
    return {**plain, **enums}

  def word(self, key: str) -> str:
    """The attribute called `key`, of an enumeration the case alone; "" where there is none."""
    return self._words.get(key, "")

  def has(self, key: str) -> bool:
    """Whether the unit attribute `key` is set."""
    return re.search(rf"\b{key}\b(?! =)", self.attributes) is not None


def split(text: str) -> list[str]:
  """The parts between commas outside of brackets."""
  parts, depth, start = [], 0, 0
  for index, character in enumerate(text):
    if character in "<([{":
      depth += 1
    elif character in ">)]}" and not (character == ">" and text[index - 1] == "-"):
      depth -= 1
    elif character == "," and depth == 0:
      parts.append(text[start:index].strip())
      start = index + 1
  last = text[start:].strip()
  return [*parts, last] if last else parts


class _Reader:
  """A place in the text."""

  def __init__(self, text: str) -> None:
    self.text = text
    self.at = text.index('"builtin.module"')

  def skip(self) -> None:
    """Over white space and comments."""
    while True:
      while self.at < len(self.text) and self.text[self.at].isspace():
        self.at += 1
      if not self.text.startswith("//", self.at):
        return
      self.at = self.text.index("\n", self.at)

  def next_is(self, word: str) -> bool:
    self.skip()
    return self.text.startswith(word, self.at)

  def take(self, word: str) -> None:
    if not self.next_is(word):
      raise SyntaxError(f"expected {word!r} at {self.text[self.at : self.at + 80]!r}")
    self.at += len(word)

  def group(self) -> str:
    """What stands between the bracket here and its partner."""
    self.skip()
    opening = self.text[self.at]
    closing, depth, index = _CLOSING[opening], 0, self.at
    while True:
      character = self.text[index]
      if character == '"':
        index = self.text.index('"', index + 1)
      elif character == opening:
        depth += 1
      elif character == closing and not (closing == ">" and self.text[index - 1] == "-"):
        depth -= 1
        if depth == 0:
          break
      index += 1
    inside = self.text[self.at + 1 : index]
    self.at = index + 1
    return inside

  def operation(self) -> Operation:
    self.skip()
    results: list[str] = []
    match = _RESULTS.match(self.text, self.at)
    if match:
      count = int(match[2] or 1)
      results = [f"{match[1]}#{i}" for i in range(count)] if match[2] else [match[1]]
      self.at = match.end()
    name = _NAME.match(self.text, self.at)
    if name is None:
      raise SyntaxError(f"expected an operation at {self.text[self.at : self.at + 80]!r}")
    self.at = name.end()
    operands = split(self.group())
    attributes: list[str] = []
    regions: list[Region] = []
    while not self.next_is(":"):
      if self.next_is("<{"):
        self.take("<")
        attributes.append(self.group())
        self.take(">")
      elif self.next_is("({"):
        self.take("(")
        regions.append(self.region())
        while self.next_is(","):
          self.take(",")
          regions.append(self.region())
        self.take(")")
      elif self.next_is("["):
        self.group()  # successors
      else:
        attributes.append(self.group())
    self.take(":")
    operand_types = split(self.group())
    self.take("->")
    if self.next_is("("):
      result_types = split(self.group())
    else:
      end = self.text.index("\n", self.at)
      result_types = [self.text[self.at : end].strip()]
      self.at = end
    return Operation(
      name[1], results, operands, ", ".join(attributes), regions, operand_types, result_types
    )

  def region(self) -> Region:
    self.take("{")
    arguments: list[str] = []
    if self.next_is("^"):
      self.at = self.text.index("(", self.at)
      arguments = [part.split(":")[0].strip() for part in split(self.group())]
      self.take(":")
    operations = []
    while not self.next_is("}"):
      operations.append(self.operation())
    self.take("}")
    return Region(arguments, operations)


def read_module(text: str) -> tuple[Operation, dict[str, str]]:
  """The module, and its affine maps by name ("#map3" to "(d0)[s0] -> (d0 + s0)").

  Raises:
    SyntaxError: the text is not in generic form.
  """
  maps = dict(re.findall(r"^(#map\d*) = affine_map<(.*)>$", text, re.M))
  return _Reader(text).operation(), maps
