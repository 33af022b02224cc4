"""Operations on numbers, and on vectors where an operation takes both."""

import ast
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pallas_kernels.lowering.execution.generic_text import Operation, split
from pallas_kernels.lowering.execution.memory import DTYPES

_VECTOR = re.compile(r"vector<((?:\d+x)*)(\w+)>")


def _unsigned(x: Any) -> Any:
  if isinstance(x, np.ndarray):
    return x.view(np.dtype(f"u{x.dtype.name}"))
  return x % (1 << 64) if isinstance(x, int) else x


def _truncated_quotient(x: Any, y: Any) -> Any:
  quotient = abs(x) // abs(y)
  return quotient if (x < 0) == (y < 0) else -quotient


def _truncated_remainder(x: Any, y: Any) -> Any:
  return x - y * _truncated_quotient(x, y)


def _either(array: Callable[..., Any], number: Callable[..., Any]) -> Callable[..., Any]:
  def apply(x: Any, y: Any) -> Any:
    return array(x, y) if isinstance(x, np.ndarray) else number(x, y)

  return apply


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
  "addi": lambda x, y: x + y,
  "subi": lambda x, y: x - y,
  "muli": lambda x, y: x * y,
  "divsi": _truncated_quotient,
  "remsi": _truncated_remainder,
  "floordivsi": lambda x, y: x // y,
  "ceildivsi": lambda x, y: -(-x // y),
  "minsi": _either(np.minimum, min),
  "maxsi": _either(np.maximum, max),
  "minui": lambda x, y: np.minimum(_unsigned(x), _unsigned(y)).view(x.dtype),
  "shli": lambda x, y: x << y,
  "shrsi": lambda x, y: x >> y,
  "shrui": lambda x, y: (_unsigned(x) >> _unsigned(y)).view(x.dtype),
  "xori": lambda x, y: x ^ y,
  "andi": lambda x, y: x & y,
  "ori": lambda x, y: x | y,
  "addf": lambda x, y: x + y,
  "subf": lambda x, y: x - y,
  "mulf": lambda x, y: x * y,
  "divf": lambda x, y: x / y,
  "maximumf": np.maximum,
  "minimumf": np.minimum,
  "maxnumf": np.fmax,
  "minnumf": np.fmin,
}
# arith.cmpi: eq, ne, then less and greater, signed, then the same unsigned
_INTEGER_COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (
  lambda x, y: x == y,
  lambda x, y: x != y,
  lambda x, y: x < y,
  lambda x, y: x <= y,
  lambda x, y: x > y,
  lambda x, y: x >= y,
  lambda x, y: _unsigned(x) < _unsigned(y),
  lambda x, y: _unsigned(x) <= _unsigned(y),
  lambda x, y: _unsigned(x) > _unsigned(y),
  lambda x, y: _unsigned(x) >= _unsigned(y),
)
_UNORDERED = 7  # from here on, a comparison with NaN is true


def _compare_floats(predicate: int, x: Any, y: Any) -> Any:
  """The predicates of arith.cmpf: false, ordered 1 to 7, unordered 8 to 14, true."""
  if predicate in (7, 14):
    unordered = np.isnan(x) | np.isnan(y)
    return ~unordered if predicate == 7 else unordered
  comparisons = (np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal)
  if not 1 <= predicate <= 13:
    return np.full(np.shape(x), predicate == 15)
  unordered = np.isnan(x) | np.isnan(y)
  found = comparisons[(predicate - 1) % _UNORDERED](x, y)
  return found | unordered if predicate > _UNORDERED else found & ~unordered


_MATH: dict[str, Callable[[Any], Any]] = {
  "absf": np.abs,
  "exp": np.exp,
  "exp2": np.exp2,
  "log": np.log,
  "sqrt": np.sqrt,
  "rsqrt": lambda x: 1 / np.sqrt(x),
  "tanh": np.tanh,
}


def element_of(kind: str) -> str:
  """The element of a vector type, or the type itself."""
  match = _VECTOR.match(kind)
  return match[2] if match else kind


def shape_of(kind: str) -> tuple[int, ...]:
  """The shape of a vector type; () of a number's."""
  match = _VECTOR.match(kind)
  return tuple(int(size) for size in match[1].split("x") if size) if match else ()


def _number(text: str, kind: str) -> Any:
  if text in ("true", "false"):
    return text == "true"
  dtype = DTYPES[kind]
  if text.startswith("0x"):
    return np.frombuffer(int(text, 16).to_bytes(dtype.itemsize, "little"), dtype)[0]
  if dtype.kind in "iu" or kind in ("i1", "index"):
    return int(text)
  return dtype.type(float(text))


def constant(operation: Operation) -> Any:
  """The value of an arith.constant."""
  kind = operation.result_types[0]
  match = re.search(r"value = (?:dense<([^>]*)>|([^ :>]+))", operation.attributes)
  if match is None:
    raise NotImplementedError(f"a constant {operation.attributes[:80]!r}")
  text = match[2] if match[1] is None else match[1]
  element, shape = element_of(kind), shape_of(kind)
  if text.startswith("["):
    numbers = [_number(part, element) for part in re.split(r"[\[\], ]+", text) if part]
    return np.array(numbers, DTYPES[element]).reshape(shape)
  value = _number(text, element)
  return np.full(shape, value, DTYPES[element]) if match[1] is not None and shape else value


def affine(expression_map: str, values: list[int]) -> list[int]:
  """The results of an affine map "(d0)[s0] -> (d0 + s0 floordiv 2)"."""
  match = re.match(r"\(([^)]*)\)(?:\[([^\]]*)\])? -> \((.*)\)$", expression_map)
  if match is None:
    raise NotImplementedError(f"an affine map {expression_map!r}")
  names = [name.strip() for name in f"{match[1]},{match[2] or ''}".split(",") if name.strip()]
  known = dict(zip(names, values, strict=True))
  return [_affine_value(_affine_tree(part), known) for part in split(match[3])]


_AFFINE: dict[type[ast.operator], Callable[[int, int], int]] = {
  ast.Add: lambda x, y: x + y,
  ast.Sub: lambda x, y: x - y,
  ast.Mult: lambda x, y: x * y,
  ast.FloorDiv: lambda x, y: x // y,
  ast.Mod: lambda x, y: x % y,
  # "@" binds as these do, and stands for ceildiv
  ast.MatMult: lambda x, y: -(-x // y),
}


@functools.lru_cache(maxsize=1024)
def _affine_tree(expression: str) -> ast.expr:
  python = expression.replace("floordiv", "//").replace("ceildiv", "@").replace("mod", "%")
  return ast.parse(python, mode="eval").body


def _affine_value(node: ast.expr, known: dict[str, int]) -> int:
  match node:
    case ast.Constant(value=int(value)):
      return value
    case ast.Name(id=name) if name in known:
      return known[name]
    case ast.UnaryOp(op=ast.USub(), operand=operand):
      return -_affine_value(operand, known)
    case ast.BinOp(left=left, op=op, right=right) if type(op) in _AFFINE:
      return _AFFINE[type(op)](_affine_value(left, known), _affine_value(right, known))
  raise NotImplementedError(f"an affine expression {ast.unparse(node)!r}")


def arith(operation: Operation, operands: list[Any]) -> Any:
  """An operation of the dialects arith and math.

  Raises:
    NotImplementedError: it has no rule.
  """
  dialect, _, name = operation.name.partition(".")
  if dialect == "math":
    if name not in _MATH:
      raise NotImplementedError(operation.name)
    return _MATH[name](*operands)
  if name == "constant":
    return constant(operation)
  if name in _BINARY:
    return _BINARY[name](*operands)
  if name == "cmpi":
    return _INTEGER_COMPARISONS[int(operation.word("predicate"))](*operands)
  if name == "cmpf":
    return _compare_floats(int(operation.word("predicate")), *operands)
  if name == "select":
    condition, x, y = operands
    return (
      np.where(condition, x, y) if isinstance(condition, np.ndarray) else (x if condition else y)
    )
  if name == "negf":
    return -operands[0]
  return _converted(operation, name, operands[0])


def _converted(operation: Operation, name: str, x: Any) -> Any:
  dtype = DTYPES[element_of(operation.result_types[0])]
  if name in ("index_cast", "index_castui", "trunci", "extsi", "extui"):
    if isinstance(x, np.ndarray):
      return x.astype(dtype)
    return bool(x) if dtype == np.bool_ else int(x)
  if name in ("extf", "truncf", "sitofp", "uitofp"):
    return np.asarray(x).astype(dtype)[()]
  if name == "fptosi":
    return np.trunc(x).astype(dtype)
  if name == "bitcast":
    return np.asarray(x).view(dtype)[()]
  raise NotImplementedError(operation.name)
