"""Rows on their way through shared memory: what Hopper kernels whose blocks stay do.

A thread block for each core stays and takes every n-th row, n the number of blocks.
Its memory warpgroup copies rows into a ring of stages in shared memory; groups of
consumer warpgroups take whole rows in their turn, and let go of a stage as soon as
they have what they compute with in registers.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
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
from pallas_kernels.hopper.fence import fence_smem
from pallas_kernels.hopper.kept_copy import BARRIER_BYTES, Arrivals, started_ring
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.rowwise.arithmetic import INTERPRETED, Arithmetic
from pallas_kernels.rowwise.mosaic_arithmetic import MosaicArithmetic
from pallas_kernels.rowwise.row_groups import LINE_COLUMNS, Share
from pallas_kernels.rowwise.warpgroup_sums import clear

# Consumer warpgroups, in groups of 1, 2 or 4; a thread has 112 registers. Every member of a group
# pays what a row costs beside its numbers, some 95 instructions a warp where 32 numbers of a codec
# cost 576, so that few share one.
_CONSUMERS = 4
MOST_NUMBERS = 48
# Of a thread, where all share a row.
LARGEST_SHARE = 64
# Of a row.
MOST_COLUMNS = _CONSUMERS * WARPGROUP_THREADS * LARGEST_SHARE
# A copy has as many bytes for each thread of the memory warpgroup: 64 columns are 128 B. What is
# left of a row comes with a copy of its last 64, in part once more.
COPIED_COLUMNS = 64
# Vectors of results begin at multiples of their size in every row.
COLUMNS_STEP = 8
VECTORS = (8, 4)
_MOST_STAGES = 16
# Of a group: one is read while the other is filled.
_FEWEST_STAGES = 2
# Beside the ring: barriers, what warps exchange.
OTHER_BYTES = 2048


def members_of(columns: int, *, most_numbers: int = MOST_NUMBERS) -> int:
  """Warpgroups that share a row: as many as have room for its numbers, or all."""
  for members in (1, 2):
    if columns <= members * WARPGROUP_THREADS * most_numbers:
      return members
  return _CONSUMERS


def most_shift_of(columns: int) -> int:
  """Columns before a row of so many in its first line of memory, at most."""
  return LINE_COLUMNS - math.gcd(columns, LINE_COLUMNS)


def copies_of(columns: int) -> list[tuple[int, int]]:
  """First columns and sizes of the copies of a row."""
  whole = columns // COPIED_COLUMNS * COPIED_COLUMNS
  return [(0, whole)] + ([(columns - COPIED_COLUMNS, COPIED_COLUMNS)] if whole < columns else [])


def copy_row(columns: int, row: Any, there: Any, arrived: Any, shift: Any = 0) -> None:
  """A row of so many columns from global memory, in as many arrivals as it has copies."""
  for start, size in copies_of(columns):
    plgpu.copy_gmem_to_smem(
      row.at[pl.ds(start, size)],
      there.at[pl.ds(start + shift, size)],
      arrived,
      oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS,
    )


def share_of(
  columns: int,
  *,
  shifted: bool = False,
  fixed: bool = False,
  interpreted: bool = False,
  most_numbers: int = MOST_NUMBERS,
) -> Share | None:
  """The pieces with the fewest zeros beyond the row's end; None: the kernels take no such row.

  Args:
    columns: Of a row.
    shifted: Whether a row lies in the lines of shared memory as in those of global memory,
      if a thread has room for it: copies and stores are then of whole lines but for the
      row's ends. Which thread has which number depends on where the row lies, and with
      it the order of a sum, unless it is fixed.
    fixed: See `Share`.
    interpreted: Whether an interpreter runs it.
    most_numbers: Of a thread, where not all share a row.
  """
  if not COPIED_COLUMNS <= columns <= MOST_COLUMNS or columns % COLUMNS_STEP:
    return None
  most_shift = most_shift_of(columns) if shifted else 0
  before = 0 if fixed else most_shift
  if columns + before > MOST_COLUMNS:
    before = most_shift = 0
  members = members_of(columns + before, most_numbers=most_numbers)
  found = [Share(columns, members, vector, interpreted, most_shift, fixed) for vector in VECTORS]
  return min(found, key=lambda one: (one.stored, -one.vector))


def stages(
  columns: int,
  *,
  matrices: int,
  shared_bytes: int,
  column_bytes: int = 0,
  shifted: bool = False,
  fixed: bool = False,
  few: bool = False,
) -> int:
  """Stages of a 16-bit row of each matrix that fit; 0: too few, or no such row.

  A multiple of the groups, each of which thus has stages of its own, and two for
  each: one is read while the other is filled.

  Args:
    columns: Of a row.
    matrices: That come in.
    shared_bytes: Of a thread block.
    column_bytes: What a column takes beside the ring.
    shifted: See `share_of`.
    fixed: See `Share`.
    few: Whether there are no more than have to be.
  """
  share = share_of(columns, shifted=shifted, fixed=fixed)
  if share is None:
    return 0
  groups = _CONSUMERS // share.members
  # copies with a hint have barriers of their own
  room = shared_bytes - OTHER_BYTES - BARRIER_BYTES - column_bytes * share.stored
  fewest = _FEWEST_STAGES * groups
  most = fewest if few else _MOST_STAGES
  found = min(room // (2 * share.room * matrices), most) // groups * groups
  return found if found >= fewest else 0


def are_kept(matrices: Sequence[jax.Array], *, l2_bytes: int) -> bool:
  """Whether L2 is told to keep rows that come in longer than other lines, results among them.

  Which leaves the other lines to results on their way out. Worth it where L2 does not hold
  what comes in. H200, kept and as it comes, us: of rms_norm 65536 x 12288 784 and 812, 65536 x
  4096 260 and 268, 7239 x 11008 76.3 and 77.9, with a residual 65536 x 4096 519 and 537, 7239 x
  12288 171 and 176; by a block for each row 65536 x 4096 246 and 255, with a residual 498 and 517.
  But 1024 x 12288 12.7 and 12.5, and of 2048 x 8192, whose results the next kernel finds in L2,
  with that kernel 30.5 and 29.8.

  Args:
    matrices: That come in.
    l2_bytes: Of the device.
  """
  return sum(x.size * x.dtype.itemsize for x in matrices) > l2_bytes


@dataclasses.dataclass(frozen=True)
class Turn:
  """A row that a group has, as one of its members sees it.

  Attributes:
    row: Its number.
    shift: Columns before the row that its first piece begins at: `Share.shift`, or 0 where
      threads have fixed columns.
    member: Which of the group's warpgroups.
    exchange: Shared memory [2, warps] of the group, which the next row's has not.
    meet: A barrier of the group's members; the interpreter's alone, else None.
  """

  row: Any
  shift: Any
  member: Any
  exchange: Any
  meet: Any


@dataclasses.dataclass(frozen=True)
class RowStream:
  """One instance.

  Attributes:
    matrices: That come in.
    rows: Of each.
    share: How a group of warpgroups shares a row.
    groups: Of a thread block.
    programs: Thread blocks.
    stages: Of the ring.
    kept: See `are_kept`; False where an interpreter runs it, which has no L2.
  """

  matrices: int
  rows: int
  share: Share
  groups: int
  programs: int
  stages: int
  kept: bool = False

  @staticmethod
  def create(
    columns: int,
    *,
    matrices: int,
    rows: int,
    cores: int,
    shared_bytes: int,
    column_bytes: int = 0,
    shifted: bool = False,
    fixed: bool = False,
    few: bool = False,
    kept: bool = False,
    interpreted: bool = False,
  ) -> "RowStream":
    """That of rows that there are `stages` for."""
    share = share_of(columns, shifted=shifted, fixed=fixed, interpreted=interpreted)
    assert share is not None
    num_stages = stages(
      columns,
      matrices=matrices,
      shared_bytes=shared_bytes,
      column_bytes=column_bytes,
      shifted=shifted,
      fixed=fixed,
      few=few,
    )
    return RowStream(
      matrices,
      rows,
      share,
      _CONSUMERS // share.members,
      # as many as have a row in every turn of the busiest: 1024 x 12288 takes rms_norm 12.05 us by
      # 128 blocks, 12.45 by 132
      pl.cdiv(rows, pl.cdiv(rows, cores)),
      num_stages,
      kept and not interpreted,
    )

  @property
  def consumers(self) -> int:
    """Warpgroups of all groups."""
    return self.groups * self.share.members

  def arithmetic(self, *, ordinary: bool = False) -> Arithmetic:
    """What specs compute with; see `MosaicArithmetic`."""
    if self.share.interpreted:
      return INTERPRETED
    return MosaicArithmetic(vector_size=self.share.vector, ordinary=ordinary)

  @property
  def copies(self) -> list[tuple[int, int]]:
    """First columns and sizes of the copies of a row."""
    return copies_of(self.share.columns)

  def scratch(self, dtypes: Sequence[Any]) -> tuple[Any, ...]:
    """What `run` has for `scratch`, of matrices of these dtypes."""
    share = self.share
    full, empty = StageRing.barriers(
      num_stages=self.stages, copies=self.matrices * len(self.copies), consumers=share.members
    )
    meet = plgpu.Barrier(num_barriers=self.groups, num_arrivals=share.members)
    return (
      *(plgpu.SMEM((self.stages, share.room), dtype) for dtype in dtypes),
      plgpu.SMEM((self.groups, 2, 2, share.warps), jnp.float32),
      Arrivals.scratch(self.stages) if self.kept else full,
      empty,
      *([meet] if share.interpreted else []),
    )

  def run(
    self,
    matrices: Sequence[Any],
    scratch: Sequence[Any],
    *,
    values: Callable[[tuple[Any, ...]], Any],
    finish: Callable[[Turn, list[Any]], None],
    before_rows: Callable[[], None] = lambda: None,
    before_turns: Callable[[], None] = lambda: None,
  ) -> None:
    """What every warpgroup of every thread block runs.

    Args:
      matrices: Global references [rows, columns].
      scratch: References of `scratch`.
      values: (a piece of a row of each matrix, float32) -> what is kept of it.
      finish: Of a turn and what a member has of its row: stores the results.
      before_rows: What the memory warpgroup does first.
      before_turns: What the consumers do first.
    """
    ring_rows, (exchange, full, empty, *meet) = (
      scratch[: self.matrices], scratch[self.matrices :],
    )  # fmt: skip
    program = lax.axis_index("program")
    ring = started_ring(self.stages, full, empty, kept=self.kept)
    steps = lax.div(self.rows - program + self.programs - 1, jnp.int32(self.programs))
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup == self.consumers)
    def _memory() -> None:
      plgpu.set_max_registers(FEWEST_REGISTERS, action="decrease")
      before_rows()
      for rows in ring_rows:
        for stage in range(0 if self.share.most_shift else self.stages):
          self.clear(rows.at[stage])
      plgpu.commit_smem()

      def one(step: Any, _: None) -> None:
        row = program + step * self.programs

        def copy(stage: Any, arrived: Any) -> None:
          # the consumers' loads, of which `empty` told, before what the copy writes: here no one
          # waits for it
          fence_smem(interpreted=self.share.interpreted)
          shift = self.share.shift(row)
          pairs = [
            (matrix.at[row], there.at[stage])
            for matrix, there in zip(matrices, ring_rows, strict=True)
          ]
          if self.kept:
            arrived.copy([part for one in pairs for part in self._parts(*one, shift)], stage)
            return
          for one in pairs:
            self.copy(*one, arrived, shift)

        ring.fill(step, copy)

      lax.fori_loop(jnp.int32(0), steps, one, None)
      ring.drain(steps)

    @pl.when(warpgroup < self.consumers)
    def _consumer() -> None:
      registers = consumer_registers(self.consumers, producer=FEWEST_REGISTERS)
      plgpu.set_max_registers(registers, action="increase")
      before_turns()
      members = jnp.int32(self.share.members)
      group, member = lax.div(warpgroup, members), lax.rem(warpgroup, members)
      turns = lax.div(steps - group + self.groups - 1, jnp.int32(self.groups))

      def one(turn: Any, _: None) -> None:
        step = turn * self.groups + group
        stage = ring.wait(step)
        row = program + step * self.programs
        shift, starts = self.share.shift(row), self.share.starts(member)
        if self.share.fixed:
          starts, shift = [start + shift for start in starts], 0
        kept = [
          values(tuple(self.share.load(x.at[stage], start) for x in ring_rows)) for start in starts
        ]
        ring.release(step)
        exchanged = exchange.at[group, lax.rem(turn, jnp.int32(2))]
        kept = self.share.inside(kept, member, shift)
        finish(Turn(row, shift, member, exchanged, meet[0].at[group] if meet else None), kept)

      lax.fori_loop(jnp.int32(0), turns, one, None)

  def _parts(self, row: Any, there: Any, shift: Any) -> list[tuple[Any, Any]]:
    """Of a row in global memory and of where it goes, what each of the `copies` copies."""
    return [
      (row.at[pl.ds(start, size)], there.at[pl.ds(start + shift, size)])
      for start, size in self.copies
    ]

  def copy(self, row: Any, there: Any, arrived: Any, shift: Any = 0) -> None:
    """A row from global memory, in as many arrivals as there are `copies`."""
    for part, place in self._parts(row, there, shift):
      plgpu.copy_gmem_to_smem(part, place, arrived, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)

  def clear(self, there: Any) -> None:
    """Zeros beyond the end of a row in shared memory, where no copy goes.

    Their reader waits for a copy that is issued later, at a barrier where every
    thread that wrote them arrives.
    """
    share = self.share
    if share.stored > share.columns:
      beyond = there.at[pl.ds(share.columns, share.stored - share.columns)]
      clear(beyond, interpreted=share.interpreted)

  @staticmethod
  def compiler_params() -> Any:
    """Of `plgpu.kernel`."""
    return plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Lane,
      approx_math=True,
      # rows are written by copies alone, of which a barrier tells; what is exchanged has its own
      unsafe_no_auto_barriers=True,
      reduction_scratch_bytes=0,
    )

  def kernel_params(self) -> dict[str, Any]:
    """Grid and threads, for `plgpu.kernel`."""
    return {
      "grid": (self.programs,),
      "grid_names": ("program",),
      "num_threads": self.consumers + 1,
      "thread_name": "warpgroup",
      "compiler_params": self.compiler_params(),
    }
