"""What each row sees as one interval of the other side, where lengths or segment ids say so.

Without them the band of a call is known when traced. With them a row sees

    first(i) <= j < end(i)

with ends that are only known when run: those of its band over the used lengths,
cut to the run of positions that have its segment id. That needs every id to be
in one run, as packed sequences have it, in any order of the ids (the padding
often has 0 at the end). Where an id comes back after another one, the interval
is the hull of its runs, and `exact` is False for the sequence.

A kernel walks from the least `first` of a block to the largest `end`, and needs
its mask in the blocks that not all rows of it see as a whole.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.attention.masks import Band, BandRule
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.attention.segment_runs import segment_runs


class Intervals(NamedTuple):
  """What rows see.

  Attributes:
    first: int32 [b, rows], b being the batch or 1; equal to `end` where a row sees nothing.
    end: int32 [b, rows].
  """

  first: jax.Array
  end: jax.Array


class Visibility(NamedTuple):
  """The same pairs from both sides.

  Attributes:
    queries: The keys that each query sees.
    keys: The queries that see each key.
    exact: bool [b], whether the intervals are what is seen, and no more; None: all are.
  """

  queries: Intervals
  keys: Intervals
  exact: jax.Array | None


class Walks(NamedTuple):
  """The blocks that blocks of rows walk, as `hw_profiles.attention.mask.KeyBlocks`.

  Attributes:
    table: int32 [b, blocks of rows, 4]: first, full_first, full_end, end.
  """

  table: jax.Array

  @property
  def first(self) -> jax.Array:
    """The first block that a block of rows walks."""
    return self.table[..., 0]

  @property
  def end(self) -> jax.Array:
    """One past the last; `first` where there is none."""
    return self.table[..., 3]


def are_needed(operands: AttentionOperands) -> bool:
  """Whether what is seen is only known when run."""
  return any(
    x is not None for x in (operands.query_lengths, operands.key_lengths, operands.query_segments)
  )


def visibility(rule: BandRule, operands: AttentionOperands, *, interpret: bool) -> Visibility:
  """The intervals of a call with lengths or segment ids.

  Args:
    rule: What positions say.
    operands: The arrays.
    interpret: Whether the Pallas interpreter runs the kernel that looks for ids.
  """
  sizes = operands.sizes
  used_queries = _used(operands.query_lengths, sizes.seq_q)
  used_keys = _used(operands.key_lengths, sizes.seq_kv)
  band = rule.of(seq_q=used_queries, seq_kv=used_keys)
  positions = [jnp.arange(size, dtype=jnp.int32)[None] for size in (sizes.seq_q, sizes.seq_kv)]
  queries = _intervals(band, positions[0])
  keys = _intervals(band.transposed(), positions[1])
  if operands.query_segments is None or operands.key_segments is None:
    return Visibility(queries, keys, None)
  of_queries = _Side(operands.query_segments, used_queries)
  of_keys = _Side(operands.key_segments, used_keys)
  seen, seen_exact = _runs(of_queries, of_keys, interpret=interpret)
  seeing, seeing_exact = _runs(of_keys, of_queries, interpret=interpret)
  return Visibility(_meet(queries, seen), _meet(keys, seeing), seen_exact & seeing_exact)


def walks(intervals: Intervals, *, block: int, other_block: int, whole: bool) -> Walks:
  """What blocks of `block` rows walk in blocks of `other_block`.

  Args:
    intervals: Of the rows.
    block: Rows of a block.
    other_block: Of the other side.
    whole: Whether rows past the last one count as rows that see nothing, so
      that a block with any has its mask everywhere; else they do not count.
  """
  first, end = (_in_blocks(x, block, whole=whole) for x in intervals)
  empty = first >= end
  largest = jnp.iinfo(jnp.int32).max
  begins = jnp.min(jnp.where(empty, jnp.int32(largest), first), axis=2) // other_block
  ends = -(-jnp.max(jnp.where(empty, jnp.int32(0), end), axis=2) // other_block)
  begins = jnp.minimum(begins, ends)
  full_first = jnp.clip(-(-jnp.max(first, axis=2) // other_block), begins, ends)
  full_end = jnp.clip(jnp.min(end, axis=2) // other_block, full_first, ends)
  full_end = jnp.where(jnp.any(empty, axis=2), full_first, full_end)
  return Walks(jnp.stack([begins, full_first, full_end, ends], axis=2))


def ranks(found: Walks, *, blocks: int, descending: bool) -> tuple[jax.Array, jax.Array]:
  """In which order blocks of rows come to each of `blocks` blocks of the other side.

  Args:
    found: What blocks of rows walk.
    blocks: Of the other side.
    descending: Whether later blocks of rows come first.

  Returns:
    int32 [b, blocks of rows, blocks], how many come before; bool [b, blocks],
    whether any comes.
  """
  other = jnp.arange(blocks, dtype=jnp.int32)
  comes = (found.first[..., None] <= other) & (other < found.end[..., None])
  counts = comes.astype(jnp.int32)
  if descending:
    before = jnp.cumsum(counts[:, ::-1], axis=1)[:, ::-1] - counts
  else:
    before = jnp.cumsum(counts, axis=1) - counts
  return before.astype(jnp.int32), jnp.any(comes, axis=1)


def in_doubt_unless(exact: jax.Array, doubt: jax.Array) -> jax.Array:
  """`doubt` [batch, heads, rows], NaN for sequences that are not `exact`."""
  doubtful = jnp.where(exact, jnp.float32(0), jnp.float32(jnp.nan))
  return doubt + doubtful[:, None, None]


class _Side(NamedTuple):
  """Segment ids [b, rows], of which the first `used` [b, 1] count."""

  ids: jax.Array
  used: jax.Array


def _intervals(band: Band, rows: jax.Array) -> Intervals:
  ends = jnp.broadcast_arrays(*band.interval(rows))
  return Intervals(*(x.astype(jnp.int32) for x in ends))


def _used(lengths: jax.Array | None, size: int) -> jax.Array:
  """Used rows of each sequence, [b, 1]."""
  if lengths is None:
    return jnp.full((1, 1), size, jnp.int32)
  return jnp.clip(lengths, 0, size).astype(jnp.int32)[:, None]


def _runs(rows: _Side, others: _Side, *, interpret: bool) -> tuple[Intervals, jax.Array]:
  """The hull of the positions that have a row's id, and whether they are all of it, [b]."""
  batch = max(x.shape[0] for x in (*rows, *others))
  found = segment_runs(
    jnp.broadcast_to(rows.ids, (batch, rows.ids.shape[1])),
    jnp.broadcast_to(others.ids, (batch, others.ids.shape[1])),
    jnp.broadcast_to(others.used[:, 0], (batch,)),
    interpret=interpret,
  )
  position = jnp.arange(rows.ids.shape[1], dtype=jnp.int32)
  counts = position < rows.used
  exact = (found.found == found.end - found.first) | ~counts
  return Intervals(found.first, found.end), jnp.all(exact, axis=1)


def _meet(one: Intervals, other: Intervals) -> Intervals:
  """What both have."""
  first = jnp.maximum(one.first, other.first)
  return Intervals(first, jnp.maximum(jnp.minimum(one.end, other.end), first))


def _in_blocks(ends: Any, block: int, *, whole: bool) -> jax.Array:
  """[b, rows] as [b, blocks, block], filled up with what sees nothing or with the last row."""
  missing = ((0, 0), (0, -ends.shape[1] % block))
  filled = jnp.pad(ends, missing) if whole else jnp.pad(ends, missing, mode="edge")
  return filled.reshape(ends.shape[0], -1, block)
