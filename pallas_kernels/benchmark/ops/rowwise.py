"""What the row-wise ops have in common, as the benchmark sees them."""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import hw_profiles
from hw_profiles import RowConfig
from hw_profiles.rowwise.problem import RowProblem
from hw_profiles.rowwise.streams import row_op
from hw_profiles.rowwise.tiling import row_tiling
from hw_profiles.rowwise.traffic import once_through_bytes
from pallas_kernels.benchmark import cells, rows
from pallas_kernels.benchmark.ops.op import Operands, PublicOp, Shape
from pallas_kernels.benchmark.ops.verdict import Verdict, verdict

if TYPE_CHECKING:
  import jax

  import reference

FLOAT_DTYPES = ("bfloat16", "float16", "float32")
CODE_DTYPES = ("float8_e4m3fn", "int8")
# The planner prices no roundings.
RUNNING = ("compare", "run")
# Of a result that is checked in part: the interpreter copies every operand at
# each program.
_SAMPLED_ROWS = 8

O = TypeVar("O")  # noqa: E741


@dataclasses.dataclass(frozen=True)
class RowsShape(Shape):
  """Rows, leading dimensions folded in, and the elements of each."""

  rows: int
  columns: int


# The activation of Qwen3-8B's feed-forward block, and its hidden states, for 1024 tokens.
QWEN_ACTIVATION = RowsShape(rows=1024, columns=12288)
QWEN_HIDDEN = RowsShape(rows=1024, columns=4096)


class RowsOp(PublicOp[RowsShape, RowConfig, O]):
  """An op of `pallas_kernels.rowwise`: its shape, its tile, its traffic, how it is called."""

  shape_class = RowsShape
  config_class = RowConfig
  peers = ("xla",)

  # --- the planner's side

  @abc.abstractmethod
  def problem(self, shape: RowsShape, dtype: str, options: O) -> Any:
    """The planner's description of the problem."""

  def describe_plan(self, plan: hw_profiles.TilePlan) -> tuple[str, ...]:
    """Tiles and launches, bytes by what they are."""
    traffic = plan.traffic
    assert isinstance(traffic, hw_profiles.RowTraffic)
    parts = [
      ("operands", traffic.input_read_bytes),
      ("weights", traffic.weight_read_bytes),
      ("results", traffic.output_write_bytes),
      ("statistics", traffic.statistic_bytes),
    ]
    listed = " + ".join(f"{name} {cells.mib(size)}" for name, size in parts if size)
    return (
      f"tiles: {' x '.join(map(str, plan.grid))}, {traffic.launches} launch(es); resident blocks: "
      f"{plan.resident_blocks}; waves: {plan.waves}, {plan.tail_efficiency:.0%} full",
      f"working set: {cells.kib(traffic.working_set_bytes)} KiB; traffic: {listed or 0} = "
      f"{cells.mib(traffic.total_bytes)} MiB, {traffic.intensity:.1f} FLOP/B",
    )

  def flops(self, shape: RowsShape) -> int:
    """Float32 operations of every element, an exp or a reciprocal counting as one."""
    problem = self.problem(shape, self.dtypes[0], self.options_class())
    if not isinstance(problem, RowProblem):
      return 0
    cost = row_op(problem).once
    return problem.elements * (cost.operations + cost.special_functions)

  def once_through_bytes(self, shape: RowsShape, dtype: str, options: O) -> int:
    """Operands and weights read once, results written once."""
    return once_through_bytes(self.problem(shape, dtype, options))

  def steps(self, shape: RowsShape, config: RowConfig) -> tuple[int, int]:
    """A program for each block, or for each rows of blocks that are walked."""
    problem = self.problem(shape, self.dtypes[0], self.options_class())
    if not isinstance(problem, RowProblem):
      return -(-shape.rows // config.block_rows) * -(-shape.columns // config.block_cols), 1
    tiling = row_tiling(problem, config)
    return tiling.launches * tiling.programs, tiling.steps * tiling.walks

  # --- a part of the result

  def operand_shapes(self, shape: RowsShape, options: O) -> tuple[tuple[int, ...] | None, ...]:
    """One matrix."""
    return ((shape.rows, shape.columns),)

  def sample(self, shape: RowsShape) -> RowsShape:
    """Some rows, whole, since an op may need all of a row."""
    return dataclasses.replace(shape, rows=min(shape.rows, _SAMPLED_ROWS))

  def cut(self, operands: Operands, part: RowsShape) -> Operands:
    """The first rows of the matrices, all of a weight."""
    return tuple(x if x is None or x.ndim == 1 else x[: part.rows] for x in operands)

  def cut_result(self, result: Any, part: RowsShape) -> Any:
    """The first rows of every result."""
    import jax

    return jax.tree.map(lambda x: x[: part.rows], result)

  def describe_part(self, part: RowsShape, whole: RowsShape) -> str:
    """Rows."""
    return f"rows 0:{part.rows}"


def codes_verdict(found: "reference.QuantizeCheck") -> Verdict:
  """The verdict on codes, and with it on the scales."""
  codes, scale = verdict(found.codes), verdict(found.scale)
  notes = (*codes.notes, *(f"scale: {note}" for note in scale.notes))
  return dataclasses.replace(codes, check=rows.PASSED if found.passed else rows.FAILED, notes=notes)


def silu_product(gate: "jax.Array", up: "jax.Array") -> "jax.Array":
  """silu(gate)·up in float32, as people write it."""
  import jax
  import jax.numpy as jnp

  return jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)


def quantized(values: "jax.Array", dtype: str) -> tuple["jax.Array", "jax.Array"]:
  """Codes and scale of float32 rows by XLA: a peer's, so quotients are what XLA makes of them.

  On a GPU they are within 2 ulp, so that some scales and codes are the neighbours
  of the definition's. Plain `values / scale` would be a product with a reciprocal.
  """
  import jax.numpy as jnp

  from pallas_kernels.rowwise import arithmetic, codec

  amax = codec.largest_magnitude(values)
  scale = codec.scale_of(amax, jnp.dtype(dtype), arithmetic.AS_WRITTEN)
  return codes_of(values, scale, dtype), scale


def codes_of(values: "jax.Array", scale: "jax.Array", dtype: str) -> "jax.Array":
  """The codes of float32 values for a scale, by XLA."""
  import jax.numpy as jnp

  from pallas_kernels.rowwise import arithmetic, codec

  return codec.encode(values, scale, jnp.dtype(dtype), arithmetic.AS_WRITTEN)
