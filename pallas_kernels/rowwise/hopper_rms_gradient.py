"""The gradient of rms_norm on Hopper: long rows by TMA, read once (Pallas Mosaic GPU).

A thread block for a core stays and takes every n-th row, n the number of blocks, the last
rows first. Its memory warpgroup copies rows of x and d_y into a ring of stages in
shared memory; groups of consumer warpgroups take whole rows in their turn:

    x, d_y             from shared memory into registers
    Σ x² and Σ g·x     exchanged by the warps of the group
    d_x, d_y·n         d_x in the place of x, from where TMA stores it; d_y·n added up in
                       registers

A thread has the same columns in every row, so that a sum of d_weight stays in its
registers until the rows are through. Two groups' sums are added in the block, the first
one's first; `portable_rms_gradient.merge` adds the blocks' up. Cores and sizes fix the
order of all of them.

A row that one warpgroup has no registers for is shared. Where its halves are whole lines, two
blocks of a cluster have one each, and exchange what their warps found through distributed
shared memory (`cluster_numbers`): a block then has sums of half the columns only, so that
half as many are written and merged, and twice the stages, of half the size. Others are shared by
two warpgroups of a block. (Four blocks would need a quarter of the sums, but 32 clusters of 4 are
not resident at once: 55 us of 1024 x 12288.)

Rows that are no whole lines are shifted, as those of `hopper_rows` are, and so are their
gradients: copied and stored by whole lines all the same.

On an H200, with the result, us: 1024 x 12288 takes 35.4 and a stream of the same bytes 34.4, 1024 x
11008 31.4 and 31.1, 7239 x 12288 212 and 231. Of 1024 x 12288 this kernel takes 20.8 and the merge
2.2; where two warpgroups of a block share a row 21.7 and 2.9, where two of each block of a cluster
share a half 23.6, where each warpgroup had rows and a sum of its own 22.8 and 4.3; with the first
rows first 1.1 more. 7239 x 12288 takes 4 more where L2 is not told to keep rows; 7239 x 5000 with
the result 90, in the portable kernels 113.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles.capacity.warpgroups import (
  FEWEST_REGISTERS,
  WARPGROUP_THREADS,
  consumer_registers,
)
from pallas_kernels import sharding
from pallas_kernels.hopper.kept_copy import BARRIER_BYTES, Arrivals, started_ring
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.rowwise import portable_rms_gradient, warpgroup_sums
from pallas_kernels.rowwise.cluster_numbers import Exchange
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.rms_gradient_row import EXCHANGED, BlockSums, ClusterSums, Row
from pallas_kernels.rowwise.row_groups import Share
from pallas_kernels.rowwise.row_stream import (
  COLUMNS_STEP,
  COPIED_COLUMNS,
  OTHER_BYTES,
  VECTORS,
  copies_of,
  most_shift_of,
)

_CONSUMERS = 2
# Numbers of a row that a thread has, of which x, d_y and a sum each take a register, of 240: up to
# here where a warpgroup has a row, or a block's half of one, for itself, and where two share one.
_MOST_NUMBERS = 48
_MOST_OF_WARPGROUP = WARPGROUP_THREADS * _MOST_NUMBERS
_LARGEST_SHARE = 64
MOST_COLUMNS = _CONSUMERS * WARPGROUP_THREADS * _LARGEST_SHARE
_MOST_STAGES = 8


def blocks_of(columns: int, *, interpreted: bool = False) -> int:
  """Thread blocks of a cluster, which share a row: two, where half of one is whole lines that a
  warpgroup has registers for. Interpreted they cannot write into one another's shared memory."""
  halves = _MOST_OF_WARPGROUP < columns <= 2 * _MOST_OF_WARPGROUP
  return 2 if halves and columns % (2 * COPIED_COLUMNS) == 0 and not interpreted else 1


def share_of(columns: int, *, interpreted: bool = False) -> Share | None:
  """How a block's warpgroups share its part of a row; None: the kernel takes no such row.

  Of the pieces that there may be those with the fewest zeros beyond the end.
  """
  if not COPIED_COLUMNS <= columns <= MOST_COLUMNS or columns % COLUMNS_STEP:
    return None
  columns //= blocks_of(columns, interpreted=interpreted)
  members = 1 if columns <= _MOST_OF_WARPGROUP else _CONSUMERS
  # others are whole lines
  most_shift = most_shift_of(columns) if columns % COPIED_COLUMNS else 0
  found = [Share(columns, members, one, interpreted, most_shift, fixed=True) for one in VECTORS]
  return min(found, key=lambda one: (one.stored, -one.vector))


def stages(columns: int, *, shared_bytes: int) -> int:
  """Stages of a block's part of 16-bit rows of x and d_y that fit beside the weights.

  0: too few, or no such row.

  A multiple of the groups, each of which thus has stages of its own, and two
  for each: in one it has a row, from the other the row before is being stored
  until the next one comes.
  """
  share = share_of(columns)
  if share is None:
    return 0
  groups = _CONSUMERS // share.members
  room = shared_bytes - OTHER_BYTES - BARRIER_BYTES - 2 * share.stored
  found = min(room // (4 * share.room), _MOST_STAGES) // groups * groups
  return found if found >= 2 * groups else 0


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One instance.

  Attributes:
    spec: What it computes.
    rows: Of x.
    blocks: Of a cluster, which share a row.
    share: How a group of warpgroups shares a block's part of it.
    programs: Clusters.
    stages: Of the ring.
  """

  spec: RmsNormGradient
  rows: int
  blocks: int
  share: Share
  programs: int
  stages: int

  @property
  def columns(self) -> int:
    """Of a row."""
    return self.share.columns * self.blocks

  @property
  def apart(self) -> bool:
    """Whether the second group's sums have memory of their own; else stages that are free by then
    take them, which a 16-bit reference of an interpreter cannot."""
    return self.groups > 1 and self.share.interpreted

  @property
  def groups(self) -> int:
    """Of a thread block, two at most."""
    return _CONSUMERS // self.share.members

  @property
  def kept(self) -> bool:
    """Whether L2 is told to keep the rows that come in; an interpreter has none.

    They are not read again, but results leave the sooner: see `hopper_rms_norm`.
    """
    return not self.share.interpreted

  @property
  def weight_copies(self) -> list[tuple[int, int]]:
    """First columns and sizes of the copies of the weights."""
    columns = self.share.columns
    return [(0, columns)] if self.share.interpreted else copies_of(columns)

  @property
  def starts(self) -> list[int]:
    """First columns of the first member's pieces, which are neighbours."""
    return [i * self.share.piece for i in range(self.share.pieces)]

  @property
  def width(self) -> int:
    """Columns of a member's pieces."""
    return self.share.pieces * self.share.piece

  def scratch(self, x: Any, d_out: Any, weight: Any) -> tuple[Any, ...]:
    """Of `body`, of matrices of these dtypes."""
    share = self.share
    row = (self.stages, share.room)
    full, empty = StageRing.barriers(num_stages=self.stages, copies=2, consumers=share.members)
    sums = [plgpu.SMEM((share.stored,), jnp.float32)] if self.apart else []
    exchange: Any = plgpu.SMEM((self.groups, 2, EXCHANGED, share.warps), jnp.float32)
    if self.blocks > 1:
      exchange = Exchange.scratch(share, blocks=self.blocks, groups=self.groups)
    meet = plgpu.Barrier(num_barriers=self.groups, num_arrivals=share.members)
    return (
      plgpu.SMEM(row, x),
      plgpu.SMEM(row, d_out),
      plgpu.SMEM((share.stored,), weight),
      exchange,
      plgpu.Barrier(num_arrivals=len(self.weight_copies)),
      Arrivals.scratch(self.stages) if self.kept else full,
      empty,
      *([plgpu.Barrier()] if self.groups > 1 else []),
      *sums,
      *([meet] if share.interpreted else []),
    )

  def row(self, step: Any) -> Any:
    """The number of a block's row, the last ones first: L2 may have those, which the result's
    kernel read last and what made d_y wrote last."""
    return self.rows - 1 - (lax.axis_index("program") + step * self.programs)

  def body(
    self,
    x: Any,
    d_out: Any,
    weight: Any,
    d_x: Any,
    partial: Any,
    x_rows: Any,
    d_rows: Any,
    weights: Any,
    exchange: Any,
    weights_full: Any,
    full: Any,
    empty: Any,
    *others: Any,
  ) -> None:
    """What every warpgroup of every thread block runs."""
    share, groups = self.share, self.groups
    own = (groups > 1) + self.apart
    others, meet = others[:own], others[own:]
    program = lax.axis_index("program")
    block: Any = 0
    together = None
    if self.blocks > 1:
      block = lax.axis_index("block")
      together = Exchange(share, self.blocks, groups, *exchange)
      together.start()

    def part(matrix: Any) -> Any:
      """The columns that this block has of all of them."""
      if self.blocks == 1:
        return matrix
      return matrix.at[pl.ds(block * share.columns, share.columns)]

    ring = started_ring(self.stages, full, empty, kept=self.kept)
    steps = lax.div(self.rows - program + self.programs - 1, jnp.int32(self.programs))
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup == _CONSUMERS)
    def _memory() -> None:
      plgpu.set_max_registers(FEWEST_REGISTERS, action="decrease")
      if share.stored > share.columns:
        beyond = weights.at[pl.ds(share.columns, share.stored - share.columns)]
        warpgroup_sums.clear(beyond, interpreted=share.interpreted)
        plgpu.commit_smem()
      for start, size in self.weight_copies:
        _copy(part(weight).at[pl.ds(start, size)], weights.at[pl.ds(start, size)], weights_full)

      def one(step: Any, _: None) -> None:
        row = self.row(step)
        shift = share.shift(row)

        def copy(stage: Any, arrived: Any) -> None:
          parts = [
            (part(matrix.at[row]), rows.at[stage, pl.ds(shift, share.columns)])
            for matrix, rows in ((x, x_rows), (d_out, d_rows))
          ]
          if self.kept:
            arrived.copy(parts, stage)
            return
          for one, there in parts:
            _copy(one, there, arrived)

        ring.fill(step, copy)

      lax.fori_loop(jnp.int32(0), steps, one, None)
      ring.drain(steps)

    @pl.when(warpgroup < _CONSUMERS)
    def _consumer() -> None:
      registers = consumer_registers(_CONSUMERS, producer=FEWEST_REGISTERS)
      plgpu.set_max_registers(registers, action="increase")
      plgpu.barrier_wait(weights_full)
      members = jnp.int32(share.members)
      group, member = lax.div(warpgroup, members), lax.rem(warpgroup, members)
      turns = lax.div(steps - group + groups - 1, jnp.int32(groups))
      starts = [member * self.width + start for start in self.starts]

      def one(turn: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        count, totals = state[0], state[1:]
        step = turn * groups + group
        stage = ring.wait(step)
        number = self.row(step)
        shift = share.shift(number)
        sums: Any = None
        if together is None:
          places = exchange.at[group, lax.rem(turn, jnp.int32(2))]
          sums = BlockSums(share, member, places, meet[0].at[group] if meet else None)
        else:
          sums = ClusterSums(together, group, count)
        row = Row(
          self.spec, share, x_rows.at[stage], d_rows.at[stage], weights, starts, shift, sums,
          self.columns,
        )  # fmt: skip
        rounds, *found = row.numbers()

        @pl.when(turn > 0)
        def _the_row_before_has_left() -> None:
          plgpu.wait_smem_to_gmem(0, wait_read_only=True)
          ring.release(step - groups)

        totals = row.store(totals, *found)
        plgpu.commit_smem()
        self._send(x_rows.at[stage], part(d_x.at[number]), member, shift)
        return (count + rounds, *totals)

      zeros = (jnp.int32(0), *(share.zeros(),) * share.pieces)
      _, *totals = lax.fori_loop(jnp.int32(0), turns, one, zeros)
      plgpu.wait_smem_to_gmem(0, wait_read_only=True)
      pl.when(turns > 0)(lambda: ring.release((turns - 1) * groups + group))
      there = others[0] if groups > 1 else None
      # or a stage of the second group, whose rows are through
      second = others[1:] if self.apart else (x_rows.at[1], d_rows.at[1])
      sums = list(zip(starts, totals, strict=True))
      self._store_sums(partial.at[block, program], sums, group, there, second)

  def _send(self, there: Any, row: Any, member: Any, shift: Any) -> None:
    """A member's columns of a row of d_x from shared memory to global memory."""
    last = self.share.members - 1
    rest = self.share.columns - last * self.width
    assert rest > 0

    def send(start: Any, size: int) -> None:
      plgpu.copy_smem_to_gmem(there.at[pl.ds(start + shift, size)], row.at[pl.ds(start, size)])

    if last == 0 or rest == self.width:
      send(member * self.width, rest)
      return
    pl.when(member < last)(lambda: send(member * self.width, self.width))
    pl.when(member == last)(lambda: send(last * self.width, rest))

  def _store_sums(
    self,
    partial: Any,
    totals: list[tuple[Any, jax.Array]],
    group: Any,
    there: Any,
    second: Sequence[Any],
  ) -> None:
    """The block's sum of d_y·n, of a member's pieces that begin at these columns.

    Args:
      partial: Where to, in global memory.
      totals: First column and sum of each piece.
      group: Whose they are.
      there: A barrier that tells the first group of the second one's sums; None: it is alone.
      second: References of shared memory for those.
    """
    share = self.share

    def store(start: Any, total: jax.Array) -> None:
      partial[pl.ds(start, share.piece)] = total

    if there is None:
      for start, total in totals:
        store(start, total)
      return

    @pl.when(group > 0)
    def _give() -> None:
      for start, total in totals:
        if self.apart:
          share.store_shared(total, second[0], start)
        else:
          share.put(total, second, start)
      plgpu.barrier_arrive(there)

    @pl.when(group == 0)
    def _add() -> None:
      plgpu.barrier_wait(there)
      for start, total in totals:
        given = share.load(second[0], start) if self.apart else share.get(second, start)
        store(start, total + given)


def _copy(part: Any, there: Any, arrived: Any) -> None:
  plgpu.copy_gmem_to_smem(part, there, arrived, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)


def run(
  spec: RmsNormGradient,
  x: jax.Array,
  weight: jax.Array,
  d_out: jax.Array,
  *,
  cores: int,
  shared_bytes: int,
  interpret: Any = None,
) -> tuple[jax.Array, jax.Array]:
  """Both gradients.

  Args:
    spec: What to compute.
    x: [1, rows, columns], of 16-bit elements, sizes at least 1 and such that there
      are `stages`.
    weight: [1, 1, columns], 16-bit.
    d_out: Of the shape of x.
    cores: Streaming multiprocessors.
    shared_bytes: Of a thread block.
    interpret: None to compile, or the interpreter's parameters.

  Returns:
    d_x [1, rows, columns], and d_weight [1, 1, columns].
  """
  _, rows, columns = x.shape
  interpreted = interpret is not None
  share = share_of(columns, interpreted=interpreted)
  assert share is not None
  num_stages = stages(columns, shared_bytes=shared_bytes)
  # as many as have a row in every turn of the busiest: a sum less to write and add for each other
  blocks = blocks_of(columns, interpreted=interpreted)
  programs = pl.cdiv(rows, pl.cdiv(rows, max(1, cores // blocks)))
  kernel = _Kernel(spec, rows, blocks, share, programs, num_stages)
  d_x, partial = plgpu.kernel(
    kernel.body,
    out_type=(
      sharding.out_struct((rows, columns), spec.dtype, x),
      sharding.out_struct((blocks, programs, share.stored), jnp.dtype(jnp.float32), x),
    ),
    scratch_types=kernel.scratch(x.dtype, d_out.dtype, weight.dtype),
    grid=(programs,),
    grid_names=("program",),
    cluster=(blocks,) if blocks > 1 else (),
    cluster_names=("block",) if blocks > 1 else (),
    num_threads=_CONSUMERS + 1,
    thread_name="warpgroup",
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Lane,
      # a thread stores only where it alone has read, and every reduction has a barrier
      unsafe_no_auto_barriers=True,
      reduction_scratch_bytes=0,
    ),
    interpret=interpret,
  )(x.reshape(rows, columns), d_out.reshape(rows, columns), weight.reshape(columns))
  merge = functools.partial(portable_rms_gradient.merge, cores=cores, interpret=interpreted)
  d_weight = merge(partial, spec.weight_dtype, columns=share.columns)
  return d_x.reshape(x.shape), d_weight.reshape(1, 1, columns)
