"""Decode attention as passes: the parts that sequences are cut into, and their merge."""

import dataclasses
from collections import Counter

from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.attention.block_visits import BlockVisits
from hw_profiles.attention.config import DecodeConfig
from hw_profiles.attention.decode_problem import DecodeProblem
from hw_profiles.attention.passes import AttentionPass
from hw_profiles.frozen_map import FrozenMap

PARTIAL_BYTES = 4  # parts of O, and each row's maximum and sum, are float32


@dataclasses.dataclass(frozen=True)
class DecodeParts:
  """Sequences cut into parts.

  Attributes:
    visits: Blocks that each program walks, all sequences and key heads.
    parts: Parts that hold keys, all sequences and key heads.
    most: Parts of the sequence that has most.
  """

  visits: BlockVisits
  parts: int
  most: int


def decode_parts(problem: DecodeProblem, *, block_kv: int, num_splits: int) -> DecodeParts:
  """Cuts the visible blocks of each sequence into `num_splits` parts of whole blocks.

  A sequence of n blocks gets parts of ⌈n/num_splits⌉ blocks, the last one what
  is left; parts past its end hold nothing and are not run.
  """
  counts: Counter[int] = Counter()
  boundary = parts = most = 0
  for length, sequences in problem.sequences_by_length.items():
    seen = problem.mask(length).key_blocks(0, block_q=problem.seq_q, block_kv=block_kv)
    blocks = seen.visited
    # an empty sequence still writes its zeros
    part = max(ceil_div(blocks, num_splits), 1)
    whole, rest = divmod(blocks, part)
    copies = sequences * problem.key_heads
    if whole or not rest:
      counts[part if whole else 0] += max(whole, 1) * copies
    if rest:
      counts[rest] += copies
    boundary += seen.boundary * copies
    of_sequence = max(whole + (1 if rest else 0), 1)
    parts += of_sequence * copies
    most = max(most, of_sequence)
  return DecodeParts(BlockVisits(FrozenMap(counts), boundary), parts, most)


def decode_pass(
  problem: DecodeProblem, config: DecodeConfig, *, num_splits: int, row_unit: int
) -> AttentionPass:
  """The kernel that computes the parts, for the packed query heads of one key head.

  Args:
    problem: What is computed.
    config: The tile.
    num_splits: Parts of a sequence.
    row_unit: Rows are padded to a multiple of it.
  """
  parts = decode_parts(problem, block_kv=config.block_kv, num_splits=num_splits)
  d, dv = problem.head_dim, problem.output_dim
  walks = problem.batch * problem.key_heads
  merged = parts.most > 1
  return AttentionPass(
    name="forward",
    rows=round_up(problem.rows, row_unit),
    live_rows=problem.rows,
    columns=config.block_kv,
    rows_field="",
    columns_field="block_kv",
    dtype=problem.dtype,
    result_dtype="float32" if merged else problem.result_dtype,
    visits=parts.visits,
    kept=(("Q", d),),
    streamed=(("K", d), ("V", dv)),
    accumulators=(("O", dv),),
    products=(d, dv),
    score_tiles=1,
    vector_bytes=0,
    once_bytes=problem.query_output_bytes,
    walks=walks,
    walk_bytes=problem.key_value_bytes // walks if walks else 0,
    num_stages=config.num_stages,
    num_consumer_warpgroups=None,
    num_warps=config.num_warps,
  )


def merge_bytes(problem: DecodeProblem, config: DecodeConfig, *, num_splits: int) -> int:
  """Bytes that the parts write and the merge reads back; 0 where there is one part."""
  parts = decode_parts(problem, block_kv=config.block_kv, num_splits=num_splits)
  if parts.most <= 1:
    return 0
  return 2 * parts.parts * problem.rows * (problem.output_dim + 2) * PARTIAL_BYTES


def split_candidates(problem: DecodeProblem, *, block_kv: int, cores: int) -> tuple[int, ...]:
  """Numbers of parts worth comparing: powers of two, and those that fill whole waves."""
  longest = max((ceil_div(x, block_kv) for x in problem.sequences_by_length), default=0)
  sequences = max(problem.batch * problem.key_heads, 1)
  filling = [waves * cores // sequences for waves in range(1, _MOST_WAVES + 1)]
  powers = [1 << exponent for exponent in range(_MOST_SPLITS.bit_length())]
  limit = max(min(longest, _MOST_SPLITS), 1)
  return tuple(sorted({x for x in (*powers, *filling) if 1 <= x <= limit} | {1}))


_MOST_WAVES = 4
# The merge reads every part: beyond this it costs more than it hides on any device here.
_MOST_SPLITS = 256
