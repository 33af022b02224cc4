"""A chain of operators: which tensors each reads and writes, and how far it reaches."""

import collections
import dataclasses
import math
from typing import Literal

from hw_profiles import dtypes
from hw_profiles.activations import activation_cost
from hw_profiles.arguments import at_least, collection

Span = Literal["element", "row", "tensor"]
SPANS: tuple[Span, ...] = ("element", "row", "tensor")
# Instructions of an element, as `rowwise/streams` counts them: to or from
# float32; x / scale, the clamp and the rounding to a code.
_CONVERT = 1
_QUANTIZE = 3


@dataclasses.dataclass(frozen=True)
class ChainTensor:
  """An array in memory.

  Attributes:
    name: How operations refer to it.
    shape: Its sizes, 0 or more; the last one is a row's width.
    dtype: Name of its element type.
  """

  name: str
  shape: tuple[int, ...]
  dtype: str

  def __post_init__(self) -> None:
    collection(f"ChainTensor({self.name!r}).shape", self.shape)
    for size in self.shape:
      at_least(f"shape of {self.name}", size, 0)
    dtypes.size_bytes(self.dtype)

  @property
  def row_bytes(self) -> int:
    """Bytes of one row: the last dimension."""
    return (self.shape[-1] if self.shape else 1) * dtypes.size_bytes(self.dtype)

  @property
  def rows(self) -> int:
    """Rows: all dimensions but the last."""
    return math.prod(self.shape[:-1])

  @property
  def elements(self) -> int:
    """All of its elements."""
    return math.prod(self.shape)

  @property
  def bytes(self) -> int:
    """Bytes of the whole tensor."""
    return self.rows * self.row_bytes


@dataclasses.dataclass(frozen=True)
class ChainOperation:
  """One step of a chain.

  Attributes:
    name: For messages and results.
    reads: Tensors it reads.
    writes: The tensor it writes.
    span: What one element of the result depends on. "element": the elements
      at its own position (or those broadcast to it). "row": the whole row, as
      with a softmax or a sum over the last dimension. "tensor": everything,
      as with a change of layout or a maximum over all rows.
    overwrites: An input whose storage the result takes; None: its own storage.
    special_functions: Results of an SM's special-function units that an element
      of the result takes. Only `fusion_time` reads them, as the next.
    arithmetic: Float32 instructions of an element, conversions included.
  """

  name: str
  reads: tuple[str, ...]
  writes: str
  span: Span = "element"
  overwrites: str | None = None
  special_functions: int = dataclasses.field(default=0, kw_only=True)
  arithmetic: int = dataclasses.field(default=0, kw_only=True)

  def __post_init__(self) -> None:
    for count in ("special_functions", "arithmetic"):
      at_least(f"{count} of {self.name}", getattr(self, count), 0)
    if self.span not in SPANS:
      raise ValueError(f"span={self.span!r} of {self.name}: expected one of {', '.join(SPANS)}")
    if self.overwrites is None:
      return
    if self.overwrites not in self.reads:
      raise ValueError(
        f"overwrites={self.overwrites!r} of {self.name}: expected one of its inputs,"
        f" {', '.join(self.reads)}"
      )
    if self.span == "tensor":
      raise ValueError(
        f"overwrites={self.overwrites!r} of {self.name}: every element of the result may need"
        " every element of it, so it would be overwritten before its last read; expected None"
      )


@dataclasses.dataclass(frozen=True)
class OperatorChain:
  """Operations in the order in which they run.

  Attributes:
    tensors: Every tensor that an operation names.
    operations: At least one; each tensor is written at most once, and before
      it is read.
    keep: Tensors that stay when the chain has ended, besides those that no
      operation reads: for example inputs that their owner needs again.

  Raises:
    ValueError: a name is unknown or taken twice, a tensor is written twice or
      read before it is written, or storage is overwritten before its last read.
  """

  tensors: tuple[ChainTensor, ...]
  operations: tuple[ChainOperation, ...]
  keep: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    collection("tensors", self.tensors, ChainTensor)
    collection("operations", self.operations, ChainOperation)
    collection("keep", self.keep)
    if not self.operations:
      raise ValueError("operations=(): expected at least one")
    for kind, names in (
      ("tensors", [tensor.name for tensor in self.tensors]),
      ("operations", [operation.name for operation in self.operations]),
    ):
      twice = [name for name, count in collections.Counter(names).items() if count > 1]
      if twice:
        raise ValueError(f"{kind}: {twice[0]!r} appears more than once; expected different names")
    known = {tensor.name for tensor in self.tensors}
    for name in self.keep:
      if name not in known:
        raise ValueError(f"keep={name!r}: expected one of {', '.join(sorted(known))}")
    self._check_order(known)
    self._check_storage()

  def _check_order(self, known: set[str]) -> None:
    written = {operation.writes for operation in self.operations}
    done: set[str] = set()
    for operation in self.operations:
      for name in (*operation.reads, operation.writes):
        if name not in known:
          raise ValueError(
            f"{operation.name} names {name!r}: expected one of {', '.join(sorted(known))}"
          )
      for name in operation.reads:
        if name in written - done:
          raise ValueError(f"{operation.name} reads {name!r} before it is written")
      if operation.writes in done:
        raise ValueError(f"{operation.name} writes {operation.writes!r}, which is written already")
      done.add(operation.writes)

  def _check_storage(self) -> None:
    for position, operation in enumerate(self.operations):
      name = operation.overwrites
      if name is None:
        continue
      later = [op.name for op in self.operations[position + 1 :] if name in op.reads]
      if name in self.keep:
        later.append("keep")
      if later:
        raise ValueError(
          f"overwrites={name!r} of {operation.name}: {', '.join(later)} still needs it; expected"
          " None, or the last operation that reads it"
        )
      if self.tensor(name).bytes < self.tensor(operation.writes).bytes:
        raise ValueError(
          f"overwrites={name!r} of {operation.name}: it has {self.tensor(name).bytes} B,"
          f" {operation.writes!r} needs {self.tensor(operation.writes).bytes} B"
        )

  def tensor(self, name: str) -> ChainTensor:
    """The tensor called `name`.

    Raises:
      ValueError: there is none.
    """
    for tensor in self.tensors:
      if tensor.name == name:
        return tensor
    known = ", ".join(sorted(tensor.name for tensor in self.tensors))
    raise ValueError(f"name={name!r}: expected one of {known}")

  @property
  def inputs(self) -> tuple[str, ...]:
    """Tensors that are read and not written here."""
    written = {operation.writes for operation in self.operations}
    reads = [name for operation in self.operations for name in operation.reads]
    return tuple(name for name in dict.fromkeys(reads) if name not in written)

  @property
  def results(self) -> tuple[str, ...]:
    """Tensors that are there when the chain has ended."""
    read = {name for operation in self.operations for name in operation.reads}
    last = [op.writes for op in self.operations if op.writes not in read]
    return tuple(dict.fromkeys((*last, *self.keep)))


def swiglu_chain(
  *, rows: int, width: int, dtype: str = "bfloat16", quantized_dtype: str | None = None
) -> OperatorChain:
  """T = silu(G), Z = T ⊙ U and, with `quantized_dtype`, Q = Z in that dtype at a fixed scale.

  Args:
    rows: Rows of G and U, [rows, width]; 0 or more.
    width: Columns of G and U.
    dtype: Of G, U, T and Z.
    quantized_dtype: Of Q; None: the chain ends with Z.

  Raises:
    ValueError: a size is negative or a dtype is unknown.
  """
  shape = (rows, width)
  tensors = [ChainTensor(name, shape, dtype) for name in ("G", "U", "T", "Z")]
  silu = activation_cost("silu")
  operations = [
    ChainOperation(
      "silu",
      ("G",),
      "T",
      special_functions=silu.special_functions,
      arithmetic=silu.vector_operations + _CONVERT,
    ),
    ChainOperation("multiply", ("T", "U"), "Z", arithmetic=1 + 2 * _CONVERT),
  ]
  if quantized_dtype is not None:
    tensors.append(ChainTensor("Q", shape, quantized_dtype))
    operations.append(ChainOperation("quantize", ("Z",), "Q", arithmetic=_QUANTIZE))
  return OperatorChain(tuple(tensors), tuple(operations))
