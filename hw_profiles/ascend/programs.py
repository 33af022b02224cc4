"""From a memory-planned HIVM module to what each core keeps, multiplies and waits for."""

import re

from hw_profiles.ascend.errors import UnsupportedIrError
from hw_profiles.ascend.memref import MemrefType, parse_memref
from hw_profiles.ascend.plan import CoreProgram, PlannedBuffer, Product
from hw_profiles.ascend.ssa_text import Statement, statements

_CONSTANT = re.compile(r"(?:arith\.constant|llvm\.mlir\.constant)[ (](-?\d+)\)? : (?:i64|index)")
_POINTER_CAST = re.compile(r"hivm\.hir\.pointer_cast\(([^)]*)\)(?: \[[^\]]*\])? : (memref<.*)$")
_PRODUCT = re.compile(r"(?:func\.)?call @mma_tile_\w+\(")
_SYNC = re.compile(
  r"hivm\.hir\.sync_block_(?P<kind>set|wait)\[.*?\](?: flag = (?P<flag>[%\w$.-]+))?"
)
_CORE_TYPE = re.compile(r"#hivm\.func_core_type<(AIC|AIV)>")
_RETURNED = re.compile(r"^(?:func\.)?return (%[\w$.-]+) :")

# operations that give another view of their first operand
_VIEWS = (
  "memref.cast",
  "memref.subview",
  "memref.reinterpret_cast",
  "memref.collapse_shape",
  "memref.expand_shape",
  "memref.view",
  "memref.memory_space_cast",
  "hivm.hir.bitcast",
  # the 950's compiler is half way to LLVM here
  "builtin.unrealized_conversion_cast",
)
_SELECTS = ("arith.select", "llvm.select")
# arguments of mma_tile: A, B, "start from zero", rows, depth, columns, accumulator
_ROLES = {0: "A", 1: "B", 6: "accumulator"}


def _number(statement: Statement | None, what: str) -> int:
  match = _CONSTANT.match(statement.text) if statement else None
  if match is None:
    text = statement.text if statement else "an argument"
    raise UnsupportedIrError(f"{what} that is no constant: {text[:160]}")
  return int(match[1])


class _Casts:
  """The pointer casts of one function, double buffers joined."""

  def __init__(self, body: list[Statement]):
    self.types: dict[Statement, MemrefType] = {}
    self.addresses: dict[Statement, tuple[int, ...]] = {}
    self._first: dict[Statement, Statement] = {}
    for statement in body:
      match = _POINTER_CAST.match(statement.text)
      if match is None:
        continue
      names = [name.strip() for name in match[1].split(",")]
      self.types[statement] = parse_memref(match[2])
      self.addresses[statement] = tuple(
        _number(statement.operands.get(name), "a buffer's address") for name in names
      )
      self._first[statement] = statement
    for statement in body:
      # which of the copies an iteration uses is a select
      if statement.operation in _SELECTS:
        roots = self.roots(statement)
        for other in roots[1:]:
          self._first[self._leader(other)] = self._leader(roots[0])

  def _leader(self, cast: Statement) -> Statement:
    while self._first[cast] is not cast:
      cast = self._first[cast]
    return cast

  def roots(self, statement: Statement | None) -> list[Statement]:
    """The casts that a value is a view of."""
    if statement is None:
      return []
    if statement in self.types:
      return [statement]
    if statement.operation in _SELECTS:
      return [
        root for name in statement.names()[1:3] for root in self.roots(statement.operands.get(name))
      ]
    if statement.operation in _VIEWS:
      return self.roots(statement.operands.get(statement.names()[0]))
    return []

  def group(self, statement: Statement | None) -> Statement | None:
    """The cast that stands for all copies of what a value is a view of."""
    roots = self.roots(statement)
    return self._leader(roots[0]) if roots else None

  def groups(self) -> dict[Statement, tuple[int, ...]]:
    """Each buffer, with the addresses of its copies."""
    found: dict[Statement, list[int]] = {}
    for cast, addresses in self.addresses.items():
      found.setdefault(self._leader(cast), []).extend(addresses)
    return {cast: tuple(sorted(set(addresses))) for cast, addresses in found.items()}


def _products(body: list[Statement], casts: _Casts) -> tuple[dict[Statement, str], list[Product]]:
  """The role of each buffer of a product, and the products, each once."""
  roles: dict[Statement, str] = {}
  products: dict[tuple[Statement | None, ...], Product] = {}
  for statement in body:
    if not _PRODUCT.match(statement.text):
      continue
    arguments = statement.names()
    operands = {
      role: casts.group(statement.operands.get(arguments[position]))
      for position, role in _ROLES.items()
    }
    key = tuple(operands.values())
    a, accumulator = operands["A"], operands["accumulator"]
    if key in products or a is None or accumulator is None:
      continue
    # L0C lies in fractals [columns, rows, 16, 16]; of A its size says the depth
    outer_columns, outer_rows, inner_rows, inner_columns = casts.types[accumulator].shape
    rows = outer_rows * inner_rows
    elements = 1
    for size in casts.types[a].shape:
      elements *= size
    products[key] = Product(
      rows=rows,
      depth=elements // rows,
      columns=outer_columns * inner_columns,
      element=casts.types[a].element,
    )
    number = f" {len(products)}" if len(products) > 1 else ""
    for role, buffer in operands.items():
      if buffer is not None:
        roles.setdefault(buffer, f"{role}{number}")
  return roles, list(products.values())


def _buffers(casts: _Casts, roles: dict[Statement, str]) -> tuple[PlannedBuffer, ...]:
  found: dict[PlannedBuffer, None] = {}
  for cast, addresses in casts.groups().items():
    kind = casts.types[cast]
    # the compiler passes an empty buffer where an operation needs no temporary
    if kind.space != "GM" and kind.size_bytes:
      buffer = PlannedBuffer(
        space=kind.space,
        role=roles.get(cast, ""),
        shape=kind.shape,
        element=kind.element,
        addresses=addresses,
        copy_bytes=kind.size_bytes,
      )
      found[buffer] = None
  return tuple(sorted(found, key=lambda buffer: (buffer.space, buffer.addresses, buffer.shape)))


def _flags(body: list[Statement], kind: str) -> tuple[str, ...]:
  return tuple(
    match["flag"] or "unnumbered"
    for statement in body
    if (match := _SYNC.match(statement.text)) and match["kind"] == kind
  )


def _program(head: Statement, body: list[Statement]) -> CoreProgram:
  core = _CORE_TYPE.search(head.text)
  if core is None:
    raise UnsupportedIrError(f"function {head.function} does not say on which core it runs")
  casts = _Casts(body)
  roles, products = _products(body, casts)
  return CoreProgram(
    function=head.function,
    core=core[1],
    buffers=_buffers(casts, roles),
    products=tuple(products),
    flags_set=_flags(body, "set"),
    flags_awaited=_flags(body, "wait"),
  )


def parse_programs(hivm: str) -> tuple[tuple[CoreProgram, ...], int]:
  """The programs of a module.hivm.opt.mlir, and the workspace of a block in bytes.

  Raises:
    UnsupportedIrError: the text has something that is not understood; nothing of
      it is then left out silently.
  """
  heads: dict[str, Statement] = {}
  bodies: dict[str, list[Statement]] = {}
  for statement in statements(hivm):
    if statement.operation in ("func.func", "llvm.func"):
      heads[statement.function] = statement
      bodies[statement.function] = []
    elif statement.function:
      bodies[statement.function].append(statement)
  workspace = 0
  programs = []
  for name, head in heads.items():
    body = bodies[name]
    if name.endswith("_infer_workspace_shape_function"):
      returned = next(match for one in body if (match := _RETURNED.match(one.text)))
      workspace = _number(
        next(one for one in body if one.result == returned[1]), "the size of the workspace"
      )
    elif body and "hacc.entry" in head.text:
      programs.append(_program(head, body))
  if not programs:
    raise UnsupportedIrError("no kernel in the module: no function is marked hacc.entry")
  return tuple(programs), workspace
