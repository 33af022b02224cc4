"""What a row-wise op reads, writes and computes for each element, whatever its tile."""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.activations import activation_cost
from hw_profiles.rowwise.problem import (
  QuantizeRowsProblem,
  RmsNormProblem,
  RowProblem,
  SwigluProblem,
  SwigluQuantizeProblem,
)

STATISTIC_BYTES = 4  # float32: a sum of squares, an amax, a scale


@dataclasses.dataclass(frozen=True)
class ElementCost:
  """Operations of one element.

  Attributes:
    operations: Simple float32 arithmetic, conversions included.
    special_functions: Results of an SM's special-function units.
    exp_operations: exp and its like on an Ascend vector core.
  """

  operations: int = 0
  special_functions: int = 0
  exp_operations: int = 0

  def __add__(self, other: "ElementCost") -> "ElementCost":
    return ElementCost(
      self.operations + other.operations,
      self.special_functions + other.special_functions,
      self.exp_operations + other.exp_operations,
    )


@dataclasses.dataclass(frozen=True)
class Stream:
  """An operand or a result that passes once.

  Attributes:
    name: As the op calls it.
    dtype: Its elements.
  """

  name: str
  dtype: str

  @property
  def size_bytes(self) -> int:
    """Bytes of one element."""
    return dtypes.size_bytes(self.dtype)


@dataclasses.dataclass(frozen=True)
class RowOp:
  """One op's streams and arithmetic.

  Attributes:
    inputs: Matrices read.
    outputs: Matrices written when the row's statistics are known.
    weights: Rows of `columns` elements, each read by every program.
    statistics: Float32 numbers of a row that all its elements are needed for
      before its outputs can be written; 0: each element stands alone.
    row_outputs: How many of them are results: scales.
    sum_outputs: Matrices written while the statistics are gathered.
    reread: What a second walk of the row reads.
    reduce_reads_weights: Whether the statistics depend on `weights`.
    reduce: Arithmetic that gathers the statistics.
    apply: Arithmetic that writes the outputs.
    recompute: Arithmetic of a second walk before `apply`: what only a kept row
      still has.
  """

  inputs: tuple[Stream, ...]
  outputs: tuple[Stream, ...]
  weights: tuple[Stream, ...] = ()
  statistics: int = 0
  row_outputs: int = 0
  sum_outputs: tuple[Stream, ...] = ()
  reread: tuple[Stream, ...] = ()
  reduce_reads_weights: bool = False
  reduce: ElementCost = ElementCost()
  apply: ElementCost = ElementCost()
  recompute: ElementCost = ElementCost()

  @property
  def once(self) -> ElementCost:
    """All arithmetic of an element where its row is read once."""
    return self.reduce + self.apply

  @property
  def twice(self) -> ElementCost:
    """All arithmetic of an element where its row is read twice."""
    return self.reduce + self.recompute + self.apply


def element_bytes(streams: tuple[Stream, ...]) -> int:
  """Bytes of one element of each."""
  return sum(stream.size_bytes for stream in streams)


# A load's conversion to float32 and a store's from it.
_CONVERT = ElementCost(operations=1)
# |x| and the running maximum.
_AMAX = ElementCost(operations=2)
# x / scale, the clamp and the rounding to the codes' dtype.
_QUANTIZE = ElementCost(operations=3)


def _silu_times_up() -> ElementCost:
  """Two conversions, silu, the product; silu's own count has the conversion of the result."""
  silu = activation_cost("silu")
  return ElementCost(silu.vector_operations + 3, silu.special_functions, silu.exp_operations)


def row_op(problem: RowProblem) -> RowOp:
  """The streams and arithmetic of a problem.

  Raises:
    ValueError: `problem` is none of the row-wise ops'.
  """
  if isinstance(problem, RmsNormProblem):
    return _rms_norm(problem)
  if isinstance(problem, SwigluQuantizeProblem):
    return _swiglu_quantize(problem)
  if isinstance(problem, QuantizeRowsProblem):
    x = (Stream("x", problem.dtype),)
    return RowOp(
      inputs=x,
      outputs=(Stream("q", problem.result_dtype),),
      statistics=1,
      row_outputs=1,
      reread=x,
      reduce=_CONVERT + _AMAX,
      apply=_QUANTIZE,
      recompute=_CONVERT,
    )
  if isinstance(problem, SwigluProblem):
    return RowOp(
      inputs=_gate_and_up(problem),
      outputs=(Stream("z", problem.result_dtype),),
      apply=_silu_times_up(),
    )
  raise ValueError(f"problem={problem!r}: expected the problem of a row-wise op")


def _gate_and_up(problem: RowProblem) -> tuple[Stream, ...]:
  return Stream("gate", problem.dtype), Stream("up", problem.dtype)


def _swiglu_quantize(problem: SwigluQuantizeProblem) -> RowOp:
  inputs = _gate_and_up(problem)
  codes = (Stream("q", problem.result_dtype),)
  if not problem.row_scales:
    return RowOp(inputs=inputs, outputs=codes, apply=_silu_times_up() + _QUANTIZE)
  return RowOp(
    inputs=inputs,
    outputs=codes,
    statistics=1,
    row_outputs=1,
    reread=inputs,
    reduce=_silu_times_up() + _AMAX,
    apply=_QUANTIZE,
    recompute=_silu_times_up(),
  )


def _rms_norm(problem: RmsNormProblem) -> RowOp:
  """Sum of squares, and for codes amax of x·weight, which the row's factor scales afterwards."""
  x = Stream("x", problem.dtype)
  residual = (Stream("residual", problem.dtype),) if problem.residual else ()
  summed = (Stream("sum", problem.dtype),) if problem.residual else ()
  # convert, square, add; a residual is converted, added and the sum rounded
  reduce = ElementCost(operations=3 + 3 * len(residual))
  apply = ElementCost(operations=2) + (_QUANTIZE if problem.is_quantized else _CONVERT)
  return RowOp(
    inputs=(x, *residual),
    outputs=(Stream("q" if problem.is_quantized else "y", problem.result_dtype),),
    weights=(Stream("weight", problem.dtype),),
    statistics=2 if problem.is_quantized else 1,
    row_outputs=1 if problem.is_quantized else 0,
    sum_outputs=summed,
    reread=summed or (x,),
    reduce_reads_weights=problem.is_quantized,
    reduce=reduce + (_AMAX + _CONVERT if problem.is_quantized else ElementCost()),
    apply=apply,
    recompute=_CONVERT,
  )
