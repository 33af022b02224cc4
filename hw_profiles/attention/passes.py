"""The kernels that attention is computed by, as a tile of each sees its work.

    forward   O       of block_q rows,      walking keys
    dkv       dK, dV  of block_kv_dkv rows, walking queries
    dq        dQ      of block_q_dq rows,   walking keys
    gradients dK, dV  as "dkv", with each step's part of dQ added to a sum in memory

Backward there is one kernel for each side, so that every gradient is summed in
one program, in one order. Both compute S and dP = dO·Vᵀ, so seven products are
multiplied where five would do. The Hopper kernel multiplies five: "gradients",
whose programs add to dQ one after another, in the order of their keys.
"""

import dataclasses
from typing import Any, Literal

from hw_profiles import dtypes
from hw_profiles.attention.block_visits import BlockVisits
from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.problem import RESIDUAL_BYTES, AttentionProblem
from hw_profiles.capacity.buffers import larger_first

DEFAULT_BLOCK_Q_DKV = 64
DEFAULT_BLOCK_KV_DKV = 128
DEFAULT_BLOCK_Q_DQ = 128
DEFAULT_BLOCK_KV_DQ = 64

# Sums are float32.
SUM_BYTES = 4

PassName = Literal["forward", "dkv", "dq", "gradients"]


@dataclasses.dataclass(frozen=True)
class AttentionPass:
  """One kernel, by what one of its programs keeps, streams and multiplies.

  Attributes:
    name: Which one.
    rows: Rows of a program: queries, or keys in "dkv" and "gradients".
    live_rows: Of those, the ones that are no padding of the schedule's.
    columns: Rows of the other side in a step.
    rows_field: The config field that sets `rows`; empty where none does.
    columns_field: The config field that sets `columns`.
    dtype: Of all operands.
    result_dtype: Of the results.
    visits: Steps of each program of the whole problem.
    kept: Name and size of each operand that a program loads once.
    streamed: Name and size of each operand that it walks.
    accumulators: Name and size of each result, summed in float32.
    added: Name and size of each result of the walked side, whose float32 part of
      each step is added to those of other programs in memory.
    products: Size that each matrix product of a step has beside rows x columns.
    score_tiles: Float32 tiles of rows x columns that are live at once.
    vector_bytes: Bytes of float32 vectors that come with a streamed row: the
      log-sum-exp and delta = rowsum(dO·O) where queries are walked.
    once_bytes: What all programs together load and store once.
    walks: Key heads of all sequences: each is walked by programs of its own.
    walk_bytes: What there is to walk in each.
    num_stages: Steps in flight.
    num_consumer_warpgroups: See `AttentionConfig`.
    num_warps: See `AttentionConfig`.
    persistent: Whether thread blocks of the Hopper kernel go from tile to tile,
      the next one's operands arriving while results are stored.
    row_results: Float32 results of each row that the Hopper kernel stages: the log-sum-exp,
      and where queries see different keys whether it is in doubt.
  """

  name: PassName
  rows: int
  live_rows: int
  columns: int
  rows_field: str
  columns_field: str
  dtype: str
  result_dtype: str
  visits: BlockVisits
  kept: tuple[tuple[str, int], ...]
  streamed: tuple[tuple[str, int], ...]
  accumulators: tuple[tuple[str, int], ...]
  products: tuple[int, ...]
  score_tiles: int
  vector_bytes: int
  once_bytes: int
  walks: int
  walk_bytes: int
  num_stages: int
  num_consumer_warpgroups: int | None
  num_warps: int | None
  persistent: bool = False
  row_results: int = 0
  added: tuple[tuple[str, int], ...] = ()

  @property
  def size_bytes(self) -> int:
    """Bytes of an operand's element."""
    return dtypes.size_bytes(self.dtype)

  @property
  def result_size_bytes(self) -> int:
    """Bytes of a result's element."""
    return dtypes.size_bytes(self.result_dtype)

  @property
  def side_fields(self) -> tuple[str, ...]:
    """Config fields that set the sides of a step, the larger side first."""
    sides = {self.columns_field: self.columns, self.rows_field: self.rows}
    return tuple(field for field in larger_first(**sides) if field)

  @property
  def step_bytes(self) -> int:
    """What a step loads."""
    dims = sum(dim for _, dim in self.streamed)
    return self.columns * (dims * self.size_bytes + self.vector_bytes)

  @property
  def added_bytes(self) -> int:
    """What a step adds to sums in memory."""
    return self.columns * sum(dim for _, dim in self.added) * SUM_BYTES

  @property
  def streamed_bytes(self) -> int:
    """What all steps load: a block counts whole wherever it is visited."""
    return self.visits.total * self.step_bytes

  @property
  def tile_bytes(self) -> int:
    """What a program loads and stores once."""
    loaded = sum(dim for _, dim in self.kept) * self.size_bytes
    stored = sum(dim for _, dim in self.accumulators) * self.result_size_bytes
    return self.live_rows * (loaded + stored)

  def dram_bytes(self, *, wave_programs: int, l2_bytes: float) -> int:
    """Bytes to and from device memory.

    Programs of one key head run together, longest first, so that what they walk
    is read once where L2 keeps it; else once for each wave of them, as programs
    of a wave walk it in step.

    Args:
      wave_programs: Programs that run at once.
      l2_bytes: L2 that operands may use.
    """
    if not self.walks or not self.visits.total:
      return self.once_bytes
    read = self.walks * self.walk_bytes
    if self.walk_bytes > l2_bytes:
      programs = self.visits.blocks
      walked = self.streamed_bytes / (programs * self.walk_bytes)
      read = round(read * max(1.0, programs / self.walks / wave_programs * walked))
    return self.once_bytes + min(self.streamed_bytes, read)


def attention_passes(
  problem: AttentionProblem, config: AttentionConfig
) -> tuple[AttentionPass, ...]:
  """The forward kernel, or the two backward ones."""
  if not problem.backward:
    return (_forward(problem, config),)
  return (_dkv(problem, config), _dq(problem, config))


def hopper_passes(problem: AttentionProblem, config: AttentionConfig) -> tuple[AttentionPass, ...]:
  """The forward kernel, or the backward one."""
  if not problem.backward:
    return (_forward(problem, config),)
  d, dv = problem.head_dim, problem.output_dim
  return (
    dataclasses.replace(
      _dkv(problem, config),
      name="gradients",
      products=(d, dv, dv, d, d),
      added=(("dQ", d),),
      # the sum of dQ is stored once besides
      once_bytes=2 * problem.key_value_bytes + problem.summed_query_bytes,
    ),
  )


def _queries_walk_keys(
  problem: AttentionProblem, config: AttentionConfig, *, rows: int, columns: int
) -> dict[str, Any]:
  """What the forward kernel and "dq" have in common."""
  visits = problem.mask.visits(block_q=rows, block_kv=columns)
  walks = problem.batch * problem.key_heads
  return {
    "rows": rows,
    "live_rows": rows,
    "columns": columns,
    "dtype": problem.dtype,
    "visits": visits.scaled(copies=problem.batch * problem.heads),
    "streamed": (("K", problem.head_dim), ("V", problem.output_dim)),
    "vector_bytes": 0,
    "walks": walks,
    "walk_bytes": problem.key_value_bytes // walks if walks else 0,
    "num_stages": config.num_stages,
    "num_consumer_warpgroups": config.num_consumer_warpgroups,
    "num_warps": config.num_warps,
  }


def _forward(problem: AttentionProblem, config: AttentionConfig) -> AttentionPass:
  d, dv = problem.head_dim, problem.output_dim
  return AttentionPass(
    **_queries_walk_keys(problem, config, rows=config.block_q, columns=config.block_kv),
    name="forward",
    rows_field="block_q",
    columns_field="block_kv",
    result_dtype=problem.result_dtype,
    kept=(("Q", d),),
    accumulators=(("O", dv),),
    products=(d, dv),
    score_tiles=1,
    once_bytes=problem.query_bytes + problem.output_bytes,
    persistent=True,
    row_results=1 if problem.mask.is_open else 2,
  )


def _dq(problem: AttentionProblem, config: AttentionConfig) -> AttentionPass:
  d, dv = problem.head_dim, problem.output_dim
  rows = config.block_q_dq or DEFAULT_BLOCK_Q_DQ
  columns = config.block_kv_dq or DEFAULT_BLOCK_KV_DQ
  return AttentionPass(
    **_queries_walk_keys(problem, config, rows=rows, columns=columns),
    name="dq",
    rows_field="block_q_dq",
    columns_field="block_kv_dq",
    result_dtype=problem.dtype,
    kept=(("Q", d), ("dO", dv)),
    accumulators=(("dQ", d),),
    products=(d, dv, d),
    score_tiles=2,
    once_bytes=2 * problem.query_bytes + problem.output_bytes + 2 * problem.residual_bytes,
  )


def _dkv(problem: AttentionProblem, config: AttentionConfig) -> AttentionPass:
  d, dv = problem.head_dim, problem.output_dim
  rows = config.block_kv_dkv or DEFAULT_BLOCK_KV_DKV
  columns = config.block_q_dkv or DEFAULT_BLOCK_Q_DKV
  visits = problem.mask.transposed().visits(block_q=rows, block_kv=columns)
  walks = problem.batch * problem.key_heads
  walked = problem.query_bytes + problem.output_bytes + 2 * problem.residual_bytes
  return AttentionPass(
    name="dkv",
    rows=rows,
    live_rows=rows,
    columns=columns,
    rows_field="block_kv_dkv",
    columns_field="block_q_dkv",
    dtype=problem.dtype,
    result_dtype=problem.dtype,
    # one program sums over all query heads of its key head
    visits=visits.scaled(copies=walks, steps=problem.group),
    kept=(("K", d), ("V", dv)),
    streamed=(("Q", d), ("dO", dv)),
    accumulators=(("dK", d), ("dV", dv)),
    products=(d, dv, dv, d),
    score_tiles=2,
    vector_bytes=2 * RESIDUAL_BYTES,
    once_bytes=2 * problem.key_value_bytes,
    walks=walks,
    walk_bytes=walked // walks if walks else 0,
    num_stages=config.num_stages,
    num_consumer_warpgroups=config.num_consumer_warpgroups,
    num_warps=config.num_warps,
  )
