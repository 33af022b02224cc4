"""The Hopper attention's schedule: a TMA producer warpgroup, wgmma consumers in ping-pong.

    shared memory   what a program keeps (Q; backward K and V, or Q and dO), and where its
                    result is staged in the end, backward the same memory; one ring for each
                    streamed operand; barriers
    registers       accumulator, scores and their 16-bit operand fragments of a consumer

One consumer's exponentials run under another's products; a single consumer has
only its own products to hide them under, which wait for them.
"""

from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.attention.calibration import (
  EXPOSED_GRADIENT_SOFTMAX,
  EXPOSED_SOFTMAX,
  STEP_OVERHEAD_CYCLES,
)
from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.passes import SUM_BYTES, AttentionPass, hopper_passes
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.attention.sm import PassKernel, SmSchedule, padding_notes
from hw_profiles.attention.sm_capacity import OVERHEAD_REGISTERS, BlockNeeds
from hw_profiles.capacity.buffers import Shortfall
from hw_profiles.capacity.warpgroups import (
  FEWEST_REGISTERS,
  MOST_CONSUMERS,
  PRODUCER_REGISTERS,
  WARPGROUP_THREADS,
  block_threads,
  consumer_registers,
  launch_registers,
)
from hw_profiles.cost.arithmetic import missing_rate
from hw_profiles.profile import GpuProfile, Source

NAME = "warp_specialized"
SUPPORTED_DTYPES = ("bfloat16", "float16")
WGMMA_ROWS = 64
WGMMA_MAX_COLUMNS = 256
# K of one 16-bit wgmma is 16 elements, which are the narrowest swizzle span of 32 B, too: head
# sizes and the keys of a step are whole ones.
WGMMA_DEPTH = 16
# Backward the queries of a step are an operand's columns, too, and those of dQ are its rows: whole
# 128 B spans and wgmmas. Head sizes are padded to as much.
GRADIENT_COLUMNS = 64
_DEFAULT_MOST_CONSUMERS = 3
# Head sizes of Q and V together up to which the exponentials take as long as the products.
FREE_DIMS = 128
# Keys of a step up to which a thread holds their float32 weights until the next; see `sums_late`.
_LATE_KEYS = 128
# A buffer of shared memory begins where a 128 B swizzle pattern does, every eight rows of it.
SHARED_ALIGNMENT_BYTES = 1024
# "full" and "empty" of each slot of each ring, 8 B each, and "full" of what is kept.
BARRIER_BYTES = 8
# Beside values, of what a thread is launched with; see `_register_budget`.
LAUNCH_OVERHEAD_REGISTERS = 4
# The same of the gradients: ptxas 13 spills nothing in their loops with 208 values of 240, and with
# 224 of 248 it spills (head size 64, 128 queries) or serialises wgmmas (128, 64 queries and keys).
GRADIENT_OVERHEAD_REGISTERS = 32


def consumers_of(rows: int, asked_for: int | None) -> int:
  """Consumer warpgroups of a tile: `num_consumer_warpgroups`, or its default.

  The most, up to 3, that get whole 64-row wgmmas each: 1, 2, 3, 2 for 64, 128,
  192, 256 rows; 1 where there is no such number.

  Args:
    rows: Rows of the tile.
    asked_for: The config's field.
  """
  if asked_for is not None:
    return asked_for
  counts = range(1, _DEFAULT_MOST_CONSUMERS + 1)
  return max((x for x in counts if rows % (WGMMA_ROWS * x) == 0), default=1)


def consumer_warpgroups(one: AttentionPass) -> int:
  """`consumers_of` a pass."""
  return consumers_of(one.rows, one.num_consumer_warpgroups)


def padded_dim(dim: int) -> int:
  """A head size as wgmma reads it: whole steps of 16."""
  return round_up(dim, WGMMA_DEPTH)


def sums_late(*, head_dim: int, value_dim: int, num_stages: int, block_kv: int) -> bool:
  """Whether the forward kernel adds up the weights of a block in the step after.

  With head sizes of 64 the exponentials take as long as the products, and ptxas
  has each wait for the addition of one before. Without additions between them
  they follow one another every 8 cycles, as fast as the unit makes them, and the
  additions are made while the next scores are: 1197 us against 1259 at 2 x 8192,
  32 heads, causal, on an H200, and 2466 against 2647 without a mask. It takes the
  next keys and values a step early, which are there only with more than two
  stages (with two 1499 us), and registers for a block's float32 weights, of 128
  keys at most.
  """
  return num_stages > 2 and block_kv <= _LATE_KEYS and head_dim + value_dim <= FREE_DIMS


def takes_turns(consumers: int, *, head_dim: int, value_dim: int) -> bool:
  """Whether consumers of the forward kernel issue their products by turns.

  With head sizes of 64, where exponentials take as long as products, waiting for
  a turn costs more than it hides: 1231 us against 1197 at 2 x 8192, 32 heads,
  causal, on an H200; with 128 it gives 694 TFLOP/s against 667.
  """
  return consumers > 1 and head_dim + value_dim > FREE_DIMS


def gradient_slots(consumers: int) -> int:
  """Slots of dZ, and of a step's part of dQ, of the backward kernel.

  One for each consumer that takes a turn at dQ, and never fewer than two: a
  part leaves while the next one is being made.
  """
  return max(consumers, 2)


def _step_multiple(one: AttentionPass) -> int:
  """What head sizes and the columns of a step are multiples of."""
  return GRADIENT_COLUMNS if one.added else WGMMA_DEPTH


def _padded(one: AttentionPass, operands: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
  return tuple(round_up(dim, _step_multiple(one)) for _, dim in operands)


def pass_shared_buffers(one: AttentionPass) -> dict[str, tuple[int, int]]:
  """Bytes and copies of everything one block of a pass has in shared memory."""
  size = one.size_bytes
  stages = one.num_stages
  kept = one.rows * sum(_padded(one, one.kept)) * size
  staged = one.rows * sum(_padded(one, one.accumulators)) * one.result_size_bytes
  names = " and ".join(name for name, _ in one.kept)
  results = " and ".join(name for name, _ in one.accumulators)
  if one.persistent:
    # Q of the next tile arrives while O of this one is being stored
    held = {names: (kept, 1), results: (staged, 1)}
    results_bytes = one.rows * one.row_results * SUM_BYTES
    held["row results"] = (round_up(results_bytes, SHARED_ALIGNMENT_BYTES), 1)
  else:
    held = {f"{names}, then {results}": (max(kept, staged), 1)}
  for name, dim in one.streamed:
    held[f"{name} ring"] = (
      stages * one.columns * round_up(dim, _step_multiple(one)) * size,
      stages,
    )
  if one.vector_bytes:
    vectors_bytes = stages * one.columns * one.vector_bytes
    held["row vectors"] = (round_up(vectors_bytes, SHARED_ALIGNMENT_BYTES), stages)
  barriers = len(one.kept) + 2 * stages * len(one.streamed)
  if one.added:
    slots = gradient_slots(consumer_warpgroups(one))
    held["dZ"] = (slots * one.rows * one.columns * size, slots)
    dims = sum(_padded(one, one.added))
    held["parts of dQ"] = (slots * one.columns * dims * SUM_BYTES, slots)
    held["doubt"] = (round_up(one.rows * SUM_BYTES, SHARED_ALIGNMENT_BYTES), 1)
    # "full" and "empty" of each slot
    barriers = 1 + 2 * stages * len(one.streamed) + 4 * slots
  if one.persistent:
    # "full" and "empty" of Q, and the turn where there is one, of each consumer
    consumers = consumer_warpgroups(one)
    head_dim, value_dim = (dim for _, dim in one.streamed)
    turns = takes_turns(consumers, head_dim=padded_dim(head_dim), value_dim=padded_dim(value_dim))
    barriers = (3 if turns else 2) * consumers + 2 * stages * len(one.streamed)
  held["barriers"] = (barriers * BARRIER_BYTES, barriers)
  return held


def consumer_values(one: AttentionPass) -> int:
  """Registers of a consumer thread for accumulators, scores and 16-bit fragments.

      rows/consumers · (Σ accumulator sizes + score tiles·columns + columns/2) / 128

  of one consumer's rows, as its 128 threads share them. Backward there is the
  step's part of dQ after the scores, of `columns` rows, which consumers share by
  its columns where these are whole 128 B spans for each; then, too, the 16-bit
  fragments of both products before are still being read.
  """
  consumers = consumer_warpgroups(one)
  rows = ceil_div(one.rows, consumers)
  accumulated = sum(_padded(one, one.accumulators))
  with_scores = rows * (2 * (accumulated + one.score_tiles * one.columns) + one.columns)
  halves = [with_scores]
  for dim in _padded(one, one.added):
    width = dim // consumers if dim % (GRADIENT_COLUMNS * consumers) == 0 else dim
    halves.append(rows * 2 * (accumulated + one.columns) + one.columns * 2 * width)
  return ceil_div(max(halves), 2 * WARPGROUP_THREADS)


def _register_budget(gpu: GpuProfile, one: AttentionPass) -> tuple[int, int]:
  """Registers of a consumer thread, and those of them that are for no value.

  0 for more consumers than a block has threads for. The forward kernel's scores
  are computed while the values of the block before are being added; the
  compiler keeps that in what the block was launched with, although a consumer
  raises itself to more: it spills or serialises wgmmas with 172 values of 168
  (head size 128, 144 keys) and 128 of 128 (three consumers, head size 64, 128
  keys), and does neither with 164 and 112.
  """
  consumers = consumer_warpgroups(one)
  if consumers > MOST_CONSUMERS:
    return 0, 0
  if one.persistent:
    launched = launch_registers(consumers, registers_per_sm=gpu.registers_per_sm)
    return launched, LAUNCH_OVERHEAD_REGISTERS
  producer = FEWEST_REGISTERS if one.added else PRODUCER_REGISTERS
  raised = consumer_registers(consumers, producer=producer, registers_per_sm=gpu.registers_per_sm)
  return raised, GRADIENT_OVERHEAD_REGISTERS if one.added else OVERHEAD_REGISTERS


def _needs(gpu: GpuProfile, one: AttentionPass) -> BlockNeeds:
  """Of a producer warpgroup and the consumers."""
  consumers, values = consumer_warpgroups(one), consumer_values(one)
  budget, overhead = _register_budget(gpu, one)
  return BlockNeeds(
    shared=pass_shared_buffers(one),
    threads=block_threads(consumers),
    crew=f"{consumers} consumer warpgroups and the producer",
    crew_field="num_consumer_warpgroups",
    computing_threads=WARPGROUP_THREADS * consumers,
    values=values,
    budget=budget,
    share=(
      f"consumer thread need {values} for its share of {{}}, {one.score_tiles} score tile(s) and"
      f" fragments, and {overhead} besides"
    ),
    overhead=overhead,
  )


def unsupported(problem: AttentionProblem, gpu: GpuProfile) -> tuple[Shortfall, ...]:
  """Devices without wgmma, dtypes and head sizes that the kernels do not take."""
  found = unsupported_operands(
    gpu, problem.dtype, head_dim=problem.head_dim, value_dim=problem.output_dim
  )
  if found:
    return found
  # two consumers share dQ, and need fewer registers each than one
  refused: tuple[Shortfall, ...] = ()
  for consumers in (2, 1):
    smallest = AttentionConfig(
      WGMMA_ROWS,
      WGMMA_DEPTH,
      1,
      block_kv_dkv=WGMMA_ROWS * consumers,
      block_q_dkv=GRADIENT_COLUMNS,
    )
    refused = tuple(
      Shortfall("unsupported", "head_dim", (), f"{one.name}, smallest tile: {x.statement}")
      for one in hopper_passes(problem, smallest)
      for x in capacity_shortfalls(gpu, one)
    )
    if not refused:
      break
  return refused


def unsupported_operands(
  gpu: GpuProfile, dtype: str, *, head_dim: int, value_dim: int
) -> tuple[Shortfall, ...]:
  """Devices without wgmma, and operands that it does not take."""
  found = [*missing_rate(dtype, gpu)]
  if not gpu.has_wgmma:
    found.append(
      Shortfall(
        "unsupported",
        "device",
        (),
        f"the warp-specialised attention needs wgmma, compute capability 9.0; {gpu.name} is"
        f" {'.'.join(map(str, gpu.compute_capability))}",
      )
    )
  if dtype not in SUPPORTED_DTYPES:
    statement = (
      f"dtype={dtype!r}: the warp-specialised attention takes {' and '.join(SUPPORTED_DTYPES)}"
    )
    found.append(Shortfall("unsupported", "dtype", (), statement))
  for name, dim in (("head_dim", head_dim), ("value_dim", value_dim)):
    if dim > WGMMA_MAX_COLUMNS:
      statement = f"{name}={dim}: a wgmma has at most {WGMMA_MAX_COLUMNS} columns"
      found.append(Shortfall("unsupported", name, (), statement))
  return tuple(found)


def shape_shortfalls(one: AttentionPass) -> list[Shortfall]:
  """Rules of the matrix unit that a pass breaks."""
  found = []
  consumers = consumer_warpgroups(one)
  if one.rows % (WGMMA_ROWS * consumers):
    found.append(
      Shortfall(
        "shape",
        "tile shape",
        (one.rows_field, "num_consumer_warpgroups") if one.rows_field else (),
        f"{consumers} consumer warpgroup(s) take whole wgmmas of {WGMMA_ROWS} rows each",
      )
    )
  if one.added and one.rows > WGMMA_ROWS * consumers:
    found.append(
      Shortfall(
        "shape",
        "tile shape",
        (one.rows_field, "num_consumer_warpgroups"),
        f"a consumer warpgroup keeps {WGMMA_ROWS} keys, {consumers} keep {consumers * WGMMA_ROWS}",
      )
    )
  if one.columns % _step_multiple(one):
    found.append(
      Shortfall(
        "shape",
        "tile shape",
        (one.columns_field,),
        f"wgmma multiplies whole steps of {_step_multiple(one)} rows of a streamed block",
      )
    )
  if one.columns > WGMMA_MAX_COLUMNS:
    found.append(
      Shortfall(
        "shape",
        "tile shape",
        (one.columns_field,),
        f"a wgmma has at most {WGMMA_MAX_COLUMNS} columns of scores",
      )
    )
  return found


def _assumptions(_: GpuProfile) -> tuple[str, ...]:
  return (
    f"{100 * EXPOSED_SOFTMAX.value:.0f} % of the softmax of two or more consumers is not hidden"
    f" under products, {100 * EXPOSED_GRADIENT_SOFTMAX.value:.0f} % of that of gradients, all of a"
    f" single one's ({EXPOSED_SOFTMAX.confidence})",
  )


def exposed_softmax(one: AttentionPass) -> Source:
  """Share of two or more consumers' softmax that is not hidden under products."""
  return EXPOSED_GRADIENT_SOFTMAX if one.added else EXPOSED_SOFTMAX


def pass_kernel(gpu: GpuProfile, one: AttentionPass) -> PassKernel:
  """The thread block of a pass."""
  consumers = consumer_warpgroups(one)
  products = tuple(round_up(dim, _step_multiple(one)) for dim in one.products)
  note = (
    f"{consumers} consumer warpgroup(s) of {one.rows // consumers} rows"
    f"{' in ping-pong' if consumers > 1 else ''}, {consumer_values(one)} values and up to"
    f" {_register_budget(gpu, one)[0]} registers a thread"
  )
  return PassKernel(
    threads=block_threads(consumers),
    registers_per_thread=launch_registers(consumers, registers_per_sm=gpu.registers_per_sm),
    shared_bytes=_needs(gpu, one).shared_bytes,
    kept_dims=_padded(one, one.kept),
    streamed_dims=_padded(one, one.streamed),
    product_dims=products,
    accumulator_dims=_padded(one, one.accumulators),
    # every 64 rows read the streamed block again, once a product: half the products
    # of a step read each of the two streamed operands
    operand_reads_per_step=ceil_div(one.rows, WGMMA_ROWS)
    * ceil_div(len(products), len(one.streamed)),
    kept_reads_per_step=1,
    exposed_softmax=exposed_softmax(one).value if consumers > 1 else 1.0,
    step_overhead_cycles=STEP_OVERHEAD_CYCLES.value,
    notes=(note, *padding_notes(one, lambda dim: round_up(dim, _step_multiple(one)))),
  )


_SCHEDULE = SmSchedule(
  needs=_needs,
  shapes=shape_shortfalls,
  passes=hopper_passes,
  kernel=pass_kernel,
  assumptions=_assumptions,
)
pass_buffers = _SCHEDULE.pass_buffers
shortfalls = _SCHEDULE.shortfalls
capacity_shortfalls = _SCHEDULE.shortfalls_of_pass
demand = _SCHEDULE.demand
