"""What each row-wise op computes, block by block: one definition for XLA and the kernels.

A spec is hashable and knows neither sizes nor tiles. An `ElementSpec` treats
each element alone. A `RowSpec` needs numbers of the whole row first, one round
of them after another: a round is reduced over parts of the row, merged in the
order of the parts, and settled.

Blocks have the rows in their last dimension but one and the columns in their
last; what there is one of for each row is an axis of 1.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

import hw_profiles
from hw_profiles import RowConfig
from hw_profiles.rowwise.problem import RowProblem
from pallas_kernels import activations
from pallas_kernels.dtypes import accumulator_dtype, round_once
from pallas_kernels.rowwise import codec, inverse_rms
from pallas_kernels.rowwise.arithmetic import Arithmetic

Blocks = tuple[jax.Array, ...]

# Of an SM of compute capability 9.0.
_RESIDENT_WARPS = 64


class Part(NamedTuple):
  """A block of rows, or a piece of one.

  Attributes:
    values: What the row is made of, float32; masked elements are 0.
    weights: The blocks of the weights that belong to it.
  """

  values: jax.Array
  weights: Blocks


def wide(x: jax.Array) -> jax.Array:
  """x as the dtype it is computed in: float32, or float64."""
  return x.astype(accumulator_dtype(x.dtype))


class Spec(Protocol):
  """What the planner and the dispatch ask of any spec."""

  @property
  def out_dtypes(self) -> tuple[jnp.dtype, ...]:
    """Of the matrices that come out."""
    ...

  def problem(self, *, rows: int, columns: int, dtype: str) -> RowProblem:
    """The planner's view of it."""
    ...


class ElementSpec(Spec, Protocol):
  """An op on each element; `per_row` operands have one value a row."""

  def apply(self, blocks: Blocks, per_row: Blocks, arithmetic: Arithmetic) -> Blocks:
    """The blocks of the results."""
    ...


class RowSpec(Spec, Protocol):
  """An op on each row.

  Attributes:
    rounds: How many rounds of statistics a row needs.
    statistics: Numbers of each round.
    row_outputs: How many results there are one of for each row.
    sum_dtypes: Of the matrices that are written as the row is first read.
    ordered: Whether parts have to be merged one after another.
  """

  @property
  def ordered(self) -> bool:
    """See the class."""
    ...

  @property
  def rounds(self) -> int:
    """See the class."""
    ...

  @property
  def statistics(self) -> tuple[int, ...]:
    """See the class."""
    ...

  @property
  def row_outputs(self) -> int:
    """See the class."""
    ...

  @property
  def sum_dtypes(self) -> tuple[jnp.dtype, ...]:
    """See the class."""
    ...

  def values(self, blocks: Blocks, arithmetic: Arithmetic) -> tuple[jax.Array, Blocks]:
    """What the row is made of, float32, and the blocks of `sum_dtypes`."""
    ...

  def reduce(
    self, pieces: Sequence[Part], settled: Sequence[Any], arithmetic: Arithmetic
  ) -> Blocks:
    """The statistics of pieces of one shape in the round that follows `settled`."""
    ...

  def merge(self, round_index: int, first: Blocks, second: Blocks) -> Blocks:
    """The statistics of two parts, the first one before the second."""
    ...

  def merged_plainly(
    self, round_index: int, parts: Sequence[Blocks]
  ) -> tuple[jax.Array, Blocks] | None:
    """Whether all parts, merged one after another, are what follows, which is quicker; None: no
    such way."""
    ...

  def merged_across(self, round_index: int, parts: Blocks) -> tuple[jax.Array | None, Blocks]:
    """Whether all parts, [rows, parts] of each statistic, merged in any order are what follows;
    None: they always are. Unless `ordered`."""
    ...

  def settle(
    self, round_index: int, statistics: Blocks, *, columns: int, arithmetic: Arithmetic
  ) -> Any:
    """What the round is for, from the statistics of the whole row."""
    ...

  def finish(self, part: Part, settled: Sequence[Any], arithmetic: Arithmetic) -> Blocks:
    """The blocks of the results."""
    ...

  def row_results(self, settled: Sequence[Any]) -> Blocks:
    """The results of which there is one for each row."""
    ...


def _silu_product(gate: jax.Array, up: jax.Array, arithmetic: Arithmetic) -> jax.Array:
  return _silu(wide(gate), arithmetic) * wide(up)


def _silu(x: jax.Array, arithmetic: Arithmetic) -> jax.Array:
  return activations.silu(x, native_exp2=arithmetic.native_exp2, functions=arithmetic)


@dataclasses.dataclass(frozen=True)
class Swiglu:
  """round_out(round_mid(silu(gate))·up)."""

  intermediate_dtype: jnp.dtype
  out_dtype: jnp.dtype

  @property
  def out_dtypes(self) -> tuple[jnp.dtype, ...]:
    """One result."""
    return (self.out_dtype,)

  def problem(self, *, rows: int, columns: int, dtype: str) -> RowProblem:
    """See `Spec`."""
    return hw_profiles.SwigluProblem(rows, columns, dtype, self.out_dtype.name)

  def apply(self, blocks: Blocks, per_row: Blocks, arithmetic: Arithmetic) -> Blocks:
    """See `ElementSpec`."""
    del per_row
    gate, up = blocks
    activated = _silu(wide(gate), arithmetic)
    activated = arithmetic.narrow(activated, self.intermediate_dtype)
    return (round_once(activated * wide(up), self.out_dtype),)


@dataclasses.dataclass(frozen=True)
class SwigluGradient:
  """d_gate = d_out·up·silu'(gate) and d_up = d_out·silu(gate), in one pass over the data."""

  dtype: jnp.dtype

  @property
  def out_dtypes(self) -> tuple[jnp.dtype, ...]:
    """Both gradients."""
    return (self.dtype, self.dtype)

  def problem(self, *, rows: int, columns: int, dtype: str) -> RowProblem:
    """The forward op's, which has three streams of these five."""
    return hw_profiles.SwigluProblem(rows, columns, dtype)

  def tile(self, elements: int, *, cores: int) -> RowConfig:
    """A block of 8 elements a thread: one 16-byte load of each 16-bit operand.

    With 16, which the forward op has, 1024 x 12288 takes an H200 28.3 us, with 8 in
    blocks of 1024 27.7. Where cores have few blocks, smaller ones of more warps share
    out the arithmetic of a thread: 64 x 11008 takes 2.14 us with 4 elements a thread
    and 2.40 with 8. While all threads run at once there are two warps where one would
    do (64 x 5000: 1.60 us with 8 warps, 1.63 with 4), and an element a thread where no
    core has two blocks of that (1 x 4096: 0.93 us, 0.99 with 4 elements; but 8 x 5000,
    157 blocks: 1.08, and 1.00 with two).

    Args:
      elements: Of an operand.
      cores: Streaming multiprocessors.
    """
    if elements >= 8 * 1024 * cores:
      return RowConfig(1, 1024, 1, num_warps=4)
    if elements <= 256 * cores:
      return RowConfig(1, 256, 1, num_warps=8)
    at_once = elements * 8 <= 512 * _RESIDENT_WARPS * cores
    return RowConfig(1, 512, 1, num_warps=8 if at_once else 4)

  def apply(self, blocks: Blocks, per_row: Blocks, arithmetic: Arithmetic) -> Blocks:
    """See `ElementSpec`; gate, up and d_out come in."""
    del per_row
    gate, up, d_out = blocks
    x, upper = wide(gate), wide(up)
    gradient = d_out.astype(x.dtype)
    activated, slope = activations.silu_with_grad(
      x, native_exp2=arithmetic.native_exp2, functions=arithmetic
    )
    d_gate = gradient * upper * slope
    d_up = gradient * activated
    return round_once(d_gate, self.dtype), round_once(d_up, self.dtype)


@dataclasses.dataclass(frozen=True)
class SwigluCodes:
  """The codes of silu(gate)·up for a scale that is given, one for all or one a row."""

  code_dtype: jnp.dtype

  @property
  def out_dtypes(self) -> tuple[jnp.dtype, ...]:
    """The codes."""
    return (self.code_dtype,)

  def problem(self, *, rows: int, columns: int, dtype: str) -> RowProblem:
    """See `Spec`."""
    return hw_profiles.SwigluQuantizeProblem(
      rows, columns, dtype, self.code_dtype.name, row_scales=False
    )

  def apply(self, blocks: Blocks, per_row: Blocks, arithmetic: Arithmetic) -> Blocks:
    """See `ElementSpec`."""
    (scale,), (gate, up) = per_row, blocks
    product = _silu_product(gate, up, arithmetic)
    return (codec.encode(product, scale, self.code_dtype, arithmetic),)


@dataclasses.dataclass(frozen=True)
class RowCodes:
  """Codes and scale of each row, of x or of silu(gate)·up.

  Attributes:
    code_dtype: float8_e4m3fn or int8.
    swiglu: Whether the row is silu(gate)·up.
  """

  code_dtype: jnp.dtype
  swiglu: bool = False

  rounds = 1
  statistics = (1,)
  row_outputs = 1
  sum_dtypes = ()
  ordered = False

  @property
  def out_dtypes(self) -> tuple[jnp.dtype, ...]:
    """The codes."""
    return (self.code_dtype,)

  def problem(self, *, rows: int, columns: int, dtype: str) -> RowProblem:
    """See `Spec`."""
    kind = hw_profiles.SwigluQuantizeProblem if self.swiglu else hw_profiles.QuantizeRowsProblem
    return kind(rows, columns, dtype, self.code_dtype.name)

  def values(self, blocks: Blocks, arithmetic: Arithmetic) -> tuple[jax.Array, Blocks]:
    """See `RowSpec`, as all others here."""
    if not self.swiglu:
      return wide(blocks[0]), ()
    gate, up = blocks
    return _silu_product(gate, up, arithmetic), ()

  def reduce(
    self, pieces: Sequence[Part], settled: Sequence[Any], arithmetic: Arithmetic
  ) -> Blocks:
    """The largest magnitude."""
    del settled, arithmetic
    return (codec.largest_magnitude(*(part.values for part in pieces)),)

  def merge(self, round_index: int, first: Blocks, second: Blocks) -> Blocks:
    """The larger."""
    del round_index
    return (jnp.maximum(first[0], second[0]),)

  def merged_plainly(self, round_index: int, parts: Sequence[Blocks]) -> None:
    """A merge is one instruction as it is."""
    del round_index, parts

  def merged_across(self, round_index: int, parts: Blocks) -> tuple[None, Blocks]:
    """The largest."""
    del round_index
    return None, (jnp.max(parts[0], axis=-1, keepdims=True),)

  def settle(
    self, round_index: int, statistics: Blocks, *, columns: int, arithmetic: Arithmetic
  ) -> jax.Array:
    """The scale."""
    del round_index, columns
    return codec.scale_of(statistics[0], self.code_dtype, arithmetic)

  def finish(self, part: Part, settled: Sequence[Any], arithmetic: Arithmetic) -> Blocks:
    """The codes."""
    return (codec.encode(part.values, settled[0], self.code_dtype, arithmetic),)

  def row_results(self, settled: Sequence[Any]) -> Blocks:
    """The scale, float32."""
    return (settled[0].astype(jnp.float32),)


@dataclasses.dataclass(frozen=True)
class RmsNorm:
  """x·(mean(x²) + eps)^(-1/2)·(weight + offset), of x or of x + residual.

  Attributes:
    eps: Added to the mean.
    weight_offset: Added to the weight.
    normalised_dtype: What the normalised row is rounded to before the weight;
      None: nothing.
    weight_dtype: Of the weight.
    out_dtype: Of the result; of the codes where they are wanted.
    sum_dtype: Of x + residual, which is a result, too; None: no residual.
    num_splits: Segments of a row, where the caller fixes them.
  """

  eps: float
  weight_offset: float
  normalised_dtype: jnp.dtype | None
  weight_dtype: jnp.dtype
  out_dtype: jnp.dtype
  sum_dtype: jnp.dtype | None
  num_splits: int | None

  @property
  def quantized(self) -> bool:
    """Whether codes come out, with a scale for each row."""
    return self.out_dtype.name in codec.LARGEST_CODE

  @property
  def out_dtypes(self) -> tuple[jnp.dtype, ...]:
    """The normalised rows, or their codes."""
    return (self.out_dtype,)

  @property
  def sum_dtypes(self) -> tuple[jnp.dtype, ...]:
    """x + residual."""
    return () if self.sum_dtype is None else (self.sum_dtype,)

  @property
  def statistics(self) -> tuple[int, ...]:
    """A sum of squares has two numbers; the largest result is one."""
    return (2, 1) if self.quantized else (2,)

  @property
  def ordered(self) -> bool:
    """Where the caller fixed the segments."""
    return self.num_splits is not None

  @property
  def rounds(self) -> int:
    """The squares; for codes then the largest result."""
    return len(self.statistics)

  @property
  def row_outputs(self) -> int:
    """The scale."""
    return int(self.quantized)

  def problem(self, *, rows: int, columns: int, dtype: str) -> RowProblem:
    """See `Spec`."""
    return hw_profiles.RmsNormProblem(
      rows,
      columns,
      dtype,
      self.out_dtype.name,
      residual=self.sum_dtype is not None,
      num_splits=self.num_splits,
    )

  def values(self, blocks: Blocks, arithmetic: Arithmetic) -> tuple[jax.Array, Blocks]:
    """x; or x + residual as it is stored, so that an unfused program agrees."""
    if self.sum_dtype is None:
      return wide(blocks[0]), ()
    summed = arithmetic.narrow(wide(blocks[0]) + wide(blocks[1]), self.sum_dtype)
    return summed, (summed.astype(self.sum_dtype),)

  def _result(self, part: Part, inverse: Any, arithmetic: Arithmetic) -> jax.Array:
    normalised = inverse.normalise(part.values)
    if self.normalised_dtype is not None:
      normalised = arithmetic.narrow(normalised, self.normalised_dtype)
    return normalised * weight_of(part.weights[0], self.weight_offset, normalised.dtype)

  def reduce(
    self, pieces: Sequence[Part], settled: Sequence[Any], arithmetic: Arithmetic
  ) -> Blocks:
    """A sum of squares, then the largest result."""
    if not settled:
      values = [part.values for part in pieces]
      return tuple(inverse_rms.square_sum(values, eps=self.eps, arithmetic=arithmetic))
    results = (self._result(part, settled[0], arithmetic) for part in pieces)
    return (codec.largest_magnitude(*results),)

  def merge(self, round_index: int, first: Blocks, second: Blocks) -> Blocks:
    """The sum of the sums, the larger of the largest."""
    if round_index == 0:
      return tuple(inverse_rms.merge(inverse_rms.SquareSum(*first), inverse_rms.SquareSum(*second)))
    return (jnp.maximum(first[0], second[0]),)

  def merged_plainly(
    self, round_index: int, parts: Sequence[Blocks]
  ) -> tuple[jax.Array, Blocks] | None:
    """The sum, of rows that were not scaled."""
    if round_index:
      return None
    plain, total = inverse_rms.plain_sum([inverse_rms.SquareSum(*part) for part in parts])
    return plain, tuple(total)

  def merged_across(self, round_index: int, parts: Blocks) -> tuple[jax.Array | None, Blocks]:
    """The sum, of rows that were not scaled."""
    if round_index:
      return None, (jnp.max(parts[0], axis=-1, keepdims=True),)
    plain, total = inverse_rms.plain_sum_across(inverse_rms.SquareSum(*parts))
    return plain, tuple(total)

  def settle(
    self, round_index: int, statistics: Blocks, *, columns: int, arithmetic: Arithmetic
  ) -> Any:
    """The inverse root, then the scale."""
    if round_index == 0:
      squares = inverse_rms.SquareSum(*statistics)
      return inverse_rms.inverse_rms(squares, columns=columns, eps=self.eps)
    return codec.scale_of(statistics[0], self.out_dtype, arithmetic)

  def finish(self, part: Part, settled: Sequence[Any], arithmetic: Arithmetic) -> Blocks:
    """The result, rounded once."""
    result = self._result(part, settled[0], arithmetic)
    if self.quantized:
      return (codec.encode(result, settled[1], self.out_dtype, arithmetic),)
    return (round_once(result, self.out_dtype),)

  def row_results(self, settled: Sequence[Any]) -> Blocks:
    """The scale, float32, of codes."""
    return (settled[1].astype(jnp.float32),) if self.quantized else ()


def weight_of(weight: jax.Array, offset: float, dtype: jnp.dtype) -> jax.Array:
  """weight + offset in the dtype it is computed in."""
  weight = weight.astype(dtype)
  return weight + offset if offset else weight
