"""What the row-wise ops have in common, as the benchmark sees them."""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import hw_profiles
from hw_profiles import RowConfig
from hw_profiles.rowwise.problem import RowProblem
from hw_profiles.rowwise.streams import row_op
from hw_profiles.rowwise.tiling import row_tiling
from hw_profiles.rowwise.traffic import once_through_bytes
from pallas_kernels.benchmark import cells, rows
from pallas_kernels.benchmark.ops.gradients import behind, with_gradients, with_gradients_judged
from pallas_kernels.benchmark.ops.op import (
  Function,
  Operands,
  PublicOp,
  Shape,
  numpy_dtype,
  option,
)
from pallas_kernels.benchmark.ops.verdict import Verdict, unjudged, verdict

if TYPE_CHECKING:
  import jax

  import pallas_kernels
  import reference

FLOAT_DTYPES = ("bfloat16", "float16", "float32")
CODE_DTYPES = ("float8_e4m3fn", "int8")
# Of a result that is checked in part: the interpreter copies every operand at
# each program.
_SAMPLED_ROWS = 8

# What people would use instead, and a program that only moves as many bytes.
STREAM = "stream"
PEERS = ("xla", STREAM)

O = TypeVar("O")  # noqa: E741


def backward_option() -> Any:
  """The field `backward` of the options of an op that has gradients."""
  return option(
    False,
    "The gradients of the operands, with the result and behind it, as in training.",
    tasks=("run", "numerics"),
  )


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
  peers = PEERS

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
    """Operands and weights read once, results written once; in a run with gradients twice read.

    The gradients are there when the result is: see `gradients`.
    """
    forward = once_through_bytes(self.problem(shape, dtype, options))
    if not goes_backward(options):
      return forward
    *operands, d_out = (x for x in self.operand_shapes(shape, options) if x is not None)
    # each operand is read again and its gradient written, that of the result is read
    moved = (*operands, *operands, d_out)
    return forward + numpy_dtype(dtype).itemsize * sum(map(math.prod, moved))

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

  # --- what runs

  def explain(
    self,
    shape: RowsShape,
    dtype: str,
    options: O,
    *,
    config: RowConfig | None,
    implementation: str | None,
  ) -> "pallas_kernels.Explanation":
    """As the base class; with gradients a note that the plan is of the result alone."""
    found = super().explain(shape, dtype, options, config=config, implementation=implementation)
    if not goes_backward(options):
      return found
    note = "measured with gradients, whose kernels have tiles of their own; predicted without"
    return dataclasses.replace(found, notes=(*found.notes, note))

  def call(self, options: O, *, config: RowConfig | None, implementation: str | None) -> Function:
    """The result; with gradients that and theirs, of operands of which the last is its own."""
    forward = super().call(options, config=config, implementation=implementation)
    return with_gradients(forward) if goes_backward(options) else forward

  @abc.abstractmethod
  def xla(self, options: O) -> Function:
    """The result in plain jax.numpy, as people would write it, compiled by XLA."""

  def peer(self, name: str, options: O) -> Function:
    """xla: see there, and its own gradients. stream: the bytes of that program, moved alone."""
    forward = self.xla(options)
    if goes_backward(options):
      return {"xla": with_gradients(forward), STREAM: _streaming_twice(forward)}[name]
    return {"xla": forward, STREAM: _streaming(forward)}[name]

  # --- how it is judged

  def check(
    self,
    actual: Any,
    operands: Operands,
    options: O,
    *,
    ran: str,
    config: RowConfig | None,
    platform: str,
  ) -> Verdict:
    """The result against its definition, and gradients within their bounds.

    The bounds hold for any order of a sum, so neither the tile nor what ran plays a part.
    """
    del config, platform
    if ran == STREAM:
      return unjudged("moves as many bytes and computes something else")
    if not goes_backward(options):
      return self.judge(actual, operands, options)
    out, *gradients = actual
    *inputs, d_out = operands
    assert d_out is not None
    return with_gradients_judged(
      self.judge(out, tuple(inputs), options),
      gradients,
      ran=ran,
      bounds=lambda: self.gradient_bounds(tuple(inputs), d_out.astype(out.dtype)),
    )

  @abc.abstractmethod
  def judge(self, actual: Any, operands: Operands, options: O) -> Verdict:
    """Holds the result alone against the float64 reference."""

  def gradient_bounds(self, operands: Operands, d_out: Any) -> Mapping[str, Any]:
    """What the gradient of each operand may be, by the operand's name."""
    raise NotImplementedError(f"{self.name} has no gradients here")


def goes_backward(options: Any) -> bool:
  """Whether a run computes the operands' gradients, too."""
  return getattr(options, "backward", False)


def _streaming(program: Function) -> Function:
  """Reads every matrix that `program` reads, writes results like its, and does no more.

  Not a reduction: what empties L2 before a cold run is one, and is told by its name.
  """

  def stream(*operands: Any) -> Any:
    import jax
    import jax.numpy as jnp

    matrices = [x for x in operands if x is not None and x.ndim > 1]
    total = sum(x.astype(jnp.float32) for x in matrices)
    results = jax.tree.leaves(jax.eval_shape(program, *operands))
    # each another one, and none an operand, or XLA would copy where it has to compute
    return tuple(
      (total + (1 + index)).astype(x.dtype)
      for index, x in enumerate(results)
      if x.size == matrices[0].size
    )

  return stream


def _streaming_twice(forward: Function) -> Function:
  """What `_streaming` does, of the forward pass and behind it of the gradients."""

  def gradients(*operands: Any) -> Any:
    return with_gradients(forward)(*operands)[1:]

  def stream(*operands: Any) -> Any:
    outs = _streaming(forward)(*operands[:-1])
    # the operands, too: or XLA would keep their sum for the second pass
    outs, *again = behind(outs, *operands)
    return (*outs, *_streaming(gradients)(*again))

  return stream


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
