"""Which blocks a block visits, which of them need a mask, and in which order blocks run."""

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hw_profiles.attention.mask import KeyBlocks
from pallas_kernels.attention.integers import quotient, remainder
from pallas_kernels.attention.masks import Band
from pallas_kernels.portable_support import batch_index

# Keys and values of the heads that run at once should stay in L2, which the
# smallest of the larger GPUs (A100: 40 MB, H100: 50 MB) share with Q and O.
_L2_BYTES = 24 << 20


class Region(NamedTuple):
  """Consecutive blocks: `first` ... `end` - 1, with or without a mask."""

  first: Any
  end: Any
  masked: bool


@dataclasses.dataclass(frozen=True)
class Walk:
  """How blocks of one side visit blocks of the other.

  Attributes:
    all_masked: Every block needs its mask: there are segments or a mask array.
    ragged: The last block may hang over the end of the other side.
    has_whole: Whether the other side is as long as a block.
  """

  all_masked: bool
  ragged: bool
  has_whole: bool

  @classmethod
  def create(cls, *, block: int, extent: int, has_lengths: bool, all_masked: bool) -> "Walk":
    """For blocks of `block` over `extent`, or over lengths only known when run."""
    return cls(
      all_masked=all_masked,
      ragged=has_lengths or extent % block != 0,
      has_whole=extent >= block,
    )

  def regions(
    self, band: Band, blocks: KeyBlocks, limits: tuple[Any, Any] | None = None
  ) -> tuple[Region, ...]:
    """The regions to walk, in order; those that are never there left out.

    Args:
      band: The band that `blocks` came from.
      blocks: What a block visits.
      limits: A further first block and end, traced.
    """
    first, end = blocks.first, blocks.end
    if limits is not None:
      first = jnp.maximum(first, limits[0])
      end = jnp.maximum(jnp.minimum(end, limits[1]), first)
    if self.all_masked:
      return (Region(first, end, masked=True),)
    found = []
    if band.left is not None:
      found.append(Region(first, blocks.full_first, masked=True))
    if self.has_whole:
      found.append(Region(blocks.full_first, blocks.full_end, masked=False))
    if band.right is not None or self.ragged:
      found.append(Region(blocks.full_end, end, masked=True))
    return tuple(found)


def regions_of(first: Any, full_first: Any, full_end: Any, end: Any) -> tuple[Region, ...]:
  """The regions of `KeyBlocks` of which nothing is known when traced."""
  return (
    Region(first, full_first, masked=True),
    Region(full_first, full_end, masked=False),
    Region(full_end, end, masked=True),
  )


def walk(regions: tuple[Region, ...], body: Callable[[Any, Any, bool], Any], carry: Any) -> Any:
  """`carry = body(block, carry, masked)` over all blocks of all regions."""
  for region in regions:

    def one(block: Any, carry: Any, masked: bool = region.masked) -> Any:
      return body(block, carry, masked)

    first, end = (lax.convert_element_type(x, jnp.int32) for x in (region.first, region.end))
    carry = lax.fori_loop(first, end, one, carry)
  return carry


def walk_members(
  regions: tuple[Region, ...], members: int, body: Callable[[Any, Any, Any, bool], Any], carry: Any
) -> Any:
  """`carry = body(member, block, carry, masked)`, each region once for each member.

  One loop a region, not one in another: Triton pipelines the innermost loop
  only, and would drain it for each member.

  Member and block are carried from step to step, not computed from the step's
  number. Triton computes addresses and masks of the first steps ahead of the loop,
  whether or not they run, and of a division (by anything but a constant) it takes
  the result to be undefined for those that do not. What is undefined makes a mask
  undefined, even one that also asks whether the step runs. Where LLVM knew that a
  step never runs, it left the addresses and sizes of its copies to whatever was in
  their registers: with jax 0.11.2 an H200 read outside of Q and dO for 100 causal
  queries in blocks of 64.
  """
  if members == 1:
    return walk(regions, lambda block, *rest: body(jnp.int32(0), block, *rest), carry)
  for region in regions:
    first, end = (lax.convert_element_type(x, jnp.int32) for x in (region.first, region.end))
    steps = jnp.maximum(end - first, 0) * members

    def one(
      _: Any,
      state: tuple[Any, Any, Any],
      first: Any = first,
      end: Any = end,
      masked: bool = region.masked,
    ) -> tuple[Any, Any, Any]:
      member, block, carry = state
      carry = body(member, block, carry, masked)
      is_last = block + 1 >= end
      return (
        member + is_last.astype(jnp.int32),
        jnp.where(is_last, first, block + 1),
        carry,
      )

    _, _, carry = lax.fori_loop(jnp.int32(0), steps, one, (jnp.int32(0), first, carry))
  return carry


class Tile(NamedTuple):
  """What a program computes: a block of rows of one head of one sequence."""

  batch: Any
  head: Any
  block: Any


@dataclasses.dataclass(frozen=True)
class TileOrder:
  """The order of the programs of a grid: long tiles first within a group of heads.

  Heads of a group run together, so that what they walk stays in L2; within a
  group all heads do the block with the most to visit before any does the next,
  so that no long tile is left for the end.

  Attributes:
    batch: Sequences.
    heads: Heads of a sequence.
    blocks: Blocks of rows of a head.
    group: Heads of a group; divides batch·heads.
    descending: Whether later blocks visit more.
  """

  batch: int
  heads: int
  blocks: int
  group: int
  descending: bool

  @classmethod
  def create(
    cls,
    *,
    batch: int,
    heads: int,
    sharing: int,
    blocks: int,
    walked_bytes: int,
    grows: bool,
    at_once: int = 1,
  ) -> "TileOrder":
    """For heads of which `sharing` consecutive ones walk the same `walked_bytes`.

    Args:
      batch: Sequences.
      heads: Heads of a sequence that programs are made for.
      sharing: Of those, how many walk the same.
      blocks: Blocks of rows of a head.
      walked_bytes: What the programs of one head walk.
      grows: Whether later blocks visit more than earlier ones.
      at_once: Heads to run together even if what they walk does not fit L2.
    """
    total = batch * heads
    fitting = max(_L2_BYTES // max(walked_bytes, 1) * sharing, sharing, at_once)
    group = max((x for x in range(1, total + 1) if total % x == 0 and x <= fitting), default=1)
    return cls(batch, heads, blocks, group, descending=grows)

  @property
  def programs(self) -> int:
    """Programs of the grid."""
    return self.batch * self.heads * self.blocks

  def tile(self, program: Any) -> Tile:
    """What a program computes; the numbers are below 2^31."""
    per_group = self.group * self.blocks
    group, rest = quotient(program, per_group), remainder(program, per_group)
    block, member = quotient(rest, self.group), remainder(rest, self.group)
    head = group * self.group + member
    if self.descending:
      block = self.blocks - 1 - block
    return Tile(quotient(head, self.heads), remainder(head, self.heads), block)


def agenda(lengths: Sequence[int], *, blocks: int) -> np.ndarray:
  """Which programs each thread block of a persistent kernel runs, in which order.

  Programs are dealt out in their order, each to the block that is free first,
  as the hardware deals out thread blocks.

  Args:
    lengths: Time of each program, in any unit.
    blocks: Thread blocks.

  Returns:
    int32 [1 + most programs of a block, blocks]: how many a block runs, then
    their numbers.
  """
  free = [(0, block) for block in range(blocks)]
  dealt: list[list[int]] = [[] for _ in range(blocks)]
  for program, length in enumerate(lengths):
    time, block = free[0]
    heapq.heapreplace(free, (time + length, block))
    dealt[block].append(program)
  found = np.zeros((1 + max(map(len, dealt)), blocks), np.int32)
  for block, programs in enumerate(dealt):
    found[0, block] = len(programs)
    found[1 : 1 + len(programs), block] = programs
  return found


def dealt_agenda(work: jax.Array, order: TileOrder, *, blocks: int) -> jax.Array:
  """`agenda` where the time of a tile is only known when run.

  The longest tiles come first, and are dealt to and fro, so that who gets the
  longest of one round gets the shortest of the next. Tiles of one length run
  together for all heads, not for a group of them: sorted by groups, tiles of 2 x
  8 heads are dealt so that a block has up to 1.7 times the mean.

  Args:
    work: int32 [b, blocks of rows], time of the tiles of each head, from 1 on.
    order: Of the programs.
    blocks: Thread blocks.
  """
  program = jnp.arange(order.programs, dtype=jnp.int32)
  tile = order.tile(program)
  length = work[batch_index(work, tile.batch), tile.block]
  _, program = lax.sort((-length, program), num_keys=1, is_stable=True)
  rounds = -(-order.programs // blocks)
  dealt = jnp.pad(program, (0, rounds * blocks - order.programs), constant_values=-1)
  dealt = dealt.reshape(rounds, blocks)
  fro = jnp.arange(rounds, dtype=jnp.int32)[:, None] % 2 == 1
  dealt = jnp.where(fro, dealt[:, ::-1], dealt)
  counts = jnp.sum(dealt >= 0, axis=0, dtype=jnp.int32)
  return jnp.concatenate([counts[None], jnp.maximum(dealt, 0)])


def segment_limits(
  rows: jax.Array, columns: jax.Array, *, block_rows: int, block_columns: int
) -> jax.Array:
  """First block of columns, and end, that may share an id with a block of rows.

  Ids in ascending order, as packed sequences have them, make the limits exact;
  any others only make them wide.

  Args:
    rows: int32 [b, R], ids.
    columns: int32 [b, C].
    block_rows: Rows of a block.
    block_columns: Columns of a block.

  Returns:
    int32 [b, blocks of rows, 2].
  """
  low_rows, high_rows = _extremes(rows, block_rows)
  low_columns, high_columns = _extremes(columns, block_columns)
  overlap = (low_rows[:, :, None] <= high_columns[:, None, :]) & (
    low_columns[:, None, :] <= high_rows[:, :, None]
  )
  count = overlap.shape[2]
  index = jnp.arange(count, dtype=jnp.int32)
  first = jnp.min(jnp.where(overlap, index, jnp.int32(count)), axis=2)
  end = jnp.max(jnp.where(overlap, index + 1, jnp.int32(0)), axis=2)
  return jnp.stack([jnp.minimum(first, end), end], axis=2)


def _extremes(ids: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
  """Least and largest id of each block, [b, blocks]."""
  extra = -ids.shape[1] % block
  # the last id once more: it changes neither
  padded = jnp.pad(ids, ((0, 0), (0, extra)), mode="edge")
  blocks = padded.reshape(ids.shape[0], -1, block)
  return blocks.min(axis=2), blocks.max(axis=2)
