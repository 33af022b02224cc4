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

from typing import NamedTuple

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


class Sight(NamedTuple):
  """What all rows of one side see of the other.

  Attributes:
    seen: The intervals.
    exact: bool [b], whether they are what is seen, and no more; None: they are.
  """

  seen: Intervals
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


def of_queries(rule: BandRule, operands: AttentionOperands, *, interpret: bool) -> Sight:
  """The keys that queries see, in a call with lengths or segment ids.

  Args:
    rule: What positions say.
    operands: The arrays.
    interpret: Whether the Pallas interpreter runs the kernel that looks for ids.
  """
  queries, keys = _sides(operands)
  return _sight(_band(rule, queries, keys), queries, keys, interpret=interpret)


def of_keys(rule: BandRule, operands: AttentionOperands, *, interpret: bool) -> Sight:
  """The queries that see keys; as `of_queries`."""
  queries, keys = _sides(operands)
  band = _band(rule, queries, keys).transposed()
  return _sight(band, keys, queries, interpret=interpret)


def walks(intervals: Intervals, *, block: int, other_block: int, whole: bool) -> Walks:
  """What blocks of `block` rows walk in blocks of `other_block`.

  Args:
    intervals: Of the rows.
    block: Rows of a block.
    other_block: Of the other side.
    whole: Whether rows past the last one count as rows that see nothing, so
      that a block with any has its mask everywhere; else they do not count.
  """
  if whole:
    filled = in_whole_blocks(intervals, block)
  else:
    missing = ((0, 0), (0, -intervals.first.shape[1] % block))
    filled = Intervals(*(jnp.pad(ends, missing, mode="edge") for ends in intervals))
  first, end = (x.reshape(x.shape[0], -1, block) for x in filled)
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


def in_whole_blocks(intervals: Intervals, block: int) -> Intervals:
  """Filled up to whole blocks with rows that see nothing."""
  missing = ((0, 0), (0, -intervals.first.shape[1] % block))
  return Intervals(*(jnp.pad(ends, missing) for ends in intervals))


def in_doubt_unless(exact: jax.Array, doubt: jax.Array) -> jax.Array:
  """`doubt` [batch, heads, rows], NaN for sequences that are not `exact`."""
  doubtful = jnp.where(exact, jnp.float32(0), jnp.float32(jnp.nan))
  return doubt + doubtful[:, None, None]


class _Side(NamedTuple):
  """Rows of one side, of which the first `used` [b, 1] count, and their segment ids [b, rows]."""

  size: int
  used: jax.Array
  ids: jax.Array | None


def _sides(operands: AttentionOperands) -> tuple[_Side, _Side]:
  """Queries and keys."""
  sizes = operands.sizes
  return (
    _Side(sizes.seq_q, _used(operands.query_lengths, sizes.seq_q), operands.query_segments),
    _Side(sizes.seq_kv, _used(operands.key_lengths, sizes.seq_kv), operands.key_segments),
  )


def _used(lengths: jax.Array | None, size: int) -> jax.Array:
  """Used rows of each sequence, [b, 1]."""
  if lengths is None:
    return jnp.full((1, 1), size, jnp.int32)
  return jnp.clip(lengths, 0, size).astype(jnp.int32)[:, None]


def _band(rule: BandRule, queries: _Side, keys: _Side) -> Band:
  return rule.of(seq_q=queries.used, seq_kv=keys.used)


def _sight(band: Band, rows: _Side, others: _Side, *, interpret: bool) -> Sight:
  """What `rows`, the queries of `band`, see."""
  position = jnp.arange(rows.size, dtype=jnp.int32)[None]
  ends = jnp.broadcast_arrays(*band.interval(position))
  seen = Intervals(*(x.astype(jnp.int32) for x in ends))
  if rows.ids is None or others.ids is None:
    return Sight(seen, None)
  batch = max(x.shape[0] for x in (rows.used, rows.ids, others.used, others.ids))
  runs = segment_runs(
    jnp.broadcast_to(rows.ids, (batch, rows.size)),
    jnp.broadcast_to(others.ids, (batch, others.size)),
    jnp.broadcast_to(others.used[:, 0], (batch,)),
    interpret=interpret,
  )
  exact = (runs.found == runs.end - runs.first) | (position >= rows.used)
  return Sight(_meet(seen, Intervals(runs.first, runs.end)), jnp.all(exact, axis=1))


def _meet(one: Intervals, other: Intervals) -> Intervals:
  """What both have."""
  first = jnp.maximum(one.first, other.first)
  return Intervals(first, jnp.maximum(jnp.minimum(one.end, other.end), first))
