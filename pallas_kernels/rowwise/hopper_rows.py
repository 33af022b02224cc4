"""Codes and scales of rows on Hopper: rows by TMA, read once (Pallas Mosaic GPU).

A thread block for each core stays and takes every n-th row, n the number of blocks.
Its memory warpgroup copies rows into a ring of stages in shared memory; groups of
consumer warpgroups take whole rows in their turn:

    values     from shared memory into registers, whereupon the stage is free
    maximum    exchanged by the warps of the group
    codes      from registers to global memory

Against the portable kernel, whose programs wait for the loads of a row and then
compute, one on each core: rows are on their way while others are encoded. Of
silu(gate)·up an element costs 18 instructions of the 35 for which there is time.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from hw_profiles.capacity.warpgroups import FEWEST_REGISTERS, consumer_registers
from pallas_kernels import sharding
from pallas_kernels.hopper.fence import fence_smem
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.rowwise.arithmetic import INTERPRETED, Arithmetic
from pallas_kernels.rowwise.mosaic_arithmetic import MosaicArithmetic, is_ordinary
from pallas_kernels.rowwise.row_groups import Share
from pallas_kernels.rowwise.specs import Part, RowCodes
from pallas_kernels.rowwise.warpgroup_sums import clear

# Consumer warpgroups, in groups of 1, 2 or 4; a thread has 112 registers. Every member of a group
# pays what a row costs beside its numbers, some 95 instructions a warp where 32 numbers cost 576,
# so that few share one.
_CONSUMERS = 4
_MOST_NUMBERS = 48
# A copy has as many bytes for each thread of the memory warpgroup: 64 columns are 128 B. What is
# left of a row comes with a copy of its last 64, in part once more.
_COPIED = 64
# Vectors of codes begin at multiples of their size in every row.
_COLUMNS_STEP = 8
_VECTORS = (8, 4)
_MOST_STAGES = 16
# Beside the ring: barriers, maxima.
_OTHER_BYTES = 2048


def members_of(columns: int) -> int:
  """Warpgroups that share a row: as many as have room for its numbers, or all."""
  for members in (1, 2):
    if columns <= members * 128 * _MOST_NUMBERS:
      return members
  return _CONSUMERS


def share_of(columns: int, *, interpreted: bool = False) -> Share | None:
  """The pieces with the fewest zeros beyond the row's end; None: the kernel takes no such row."""
  if columns < _COPIED or columns % _COLUMNS_STEP:
    return None
  members = members_of(columns)
  found = [Share(columns, members, vector, interpreted) for vector in _VECTORS]
  return min(found, key=lambda one: (one.stored, -one.vector))


def stages(columns: int, *, matrices: int, shared_bytes: int) -> int:
  """Stages of a 16-bit row of each matrix that fit; 0: too few, or no such row.

  A multiple of the groups, each of which thus has stages of its own, and two for
  each: one is read while the other is filled.
  """
  share = share_of(columns)
  if share is None:
    return 0
  groups = _CONSUMERS // share.members
  room = (shared_bytes - _OTHER_BYTES) // (2 * share.stored * matrices)
  found = min(room, _MOST_STAGES) // groups * groups
  return found if found >= 2 * groups else 0


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One instance.

  Attributes:
    spec: What it computes.
    matrices: That come in.
    rows: Of each.
    share: How a group of warpgroups shares a row.
    groups: Of a thread block.
    programs: Thread blocks.
    stages: Of the ring.
  """

  spec: RowCodes
  matrices: int
  rows: int
  share: Share
  groups: int
  programs: int
  stages: int

  @property
  def consumers(self) -> int:
    """Warpgroups of all groups."""
    return self.groups * self.share.members

  def arithmetic(self, *, ordinary: bool = False) -> Arithmetic:
    """What the spec computes with; see `MosaicArithmetic`."""
    if self.share.interpreted:
      return INTERPRETED
    return MosaicArithmetic(vector_size=self.share.vector, ordinary=ordinary)

  @property
  def copies(self) -> list[tuple[int, int]]:
    """First columns and sizes of the copies of a row."""
    columns = self.share.columns
    whole = columns // _COPIED * _COPIED
    return [(0, whole)] + ([(columns - _COPIED, _COPIED)] if whole < columns else [])

  def body(self, *refs: Any) -> None:
    """What every warpgroup of every thread block runs."""
    rows_in, (codes, scales), rest = (
      refs[: self.matrices], refs[self.matrices : self.matrices + 2], refs[self.matrices + 2 :],
    )  # fmt: skip
    ring_rows, (exchange, full, empty, *meet) = rest[: self.matrices], rest[self.matrices :]
    program = lax.axis_index("program")
    ring = StageRing(self.stages, full, empty)
    steps = lax.div(self.rows - program + self.programs - 1, jnp.int32(self.programs))
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup == self.consumers)
    def _memory() -> None:
      plgpu.set_max_registers(FEWEST_REGISTERS, action="decrease")
      self._clear(ring_rows)

      def one(step: Any, _: None) -> None:
        row = program + step * self.programs

        def copy(stage: Any, arrived: Any) -> None:
          # the consumers' loads, of which `empty` told, before what the copy writes: here no one
          # waits for it
          fence_smem(interpreted=self.share.interpreted)
          for matrix, there in zip(rows_in, ring_rows, strict=True):
            for start, size in self.copies:
              at = pl.ds(start, size)
              plgpu.copy_gmem_to_smem(
                matrix.at[row, at],
                there.at[stage, at],
                arrived,
                oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS,
              )

        ring.fill(step, copy)

      lax.fori_loop(jnp.int32(0), steps, one, None)
      ring.drain(steps)

    @pl.when(warpgroup < self.consumers)
    def _consumer() -> None:
      registers = consumer_registers(self.consumers, producer=FEWEST_REGISTERS)
      plgpu.set_max_registers(registers, action="increase")
      members = jnp.int32(self.share.members)
      group, member = lax.div(warpgroup, members), lax.rem(warpgroup, members)
      turns = lax.div(steps - group + self.groups - 1, jnp.int32(self.groups))

      def one(turn: Any, _: None) -> None:
        step = turn * self.groups + group
        stage = ring.wait(step)
        values = self._values([there.at[stage] for there in ring_rows], member)
        ring.release(step)
        exchanged = exchange.at[group, lax.rem(turn, jnp.int32(2))]
        largest, finite = self.share.largest_magnitude(
          values, member, exchanged, *(barrier.at[group] for barrier in meet)
        )
        self._encode(values, member, largest, finite, codes, scales, program + step * self.programs)

      lax.fori_loop(jnp.int32(0), turns, one, None)

  def _values(self, rows: Sequence[Any], member: Any) -> list[jax.Array]:
    """A member's pieces of what the row is made of."""
    found = []
    for start in self.share.starts(member):
      blocks = tuple(self.share.load(row, start) for row in rows)
      found.append(self.spec.values(blocks, self.arithmetic())[0])
    return found

  def _encode(
    self,
    values: Sequence[jax.Array],
    member: Any,
    largest: jax.Array,
    finite: jax.Array,
    codes: Any,
    scales: Any,
    row: Any,
  ) -> None:
    """Stores a member's codes of a row, and one member its scale."""
    exact = self.arithmetic()
    scale = self.spec.settle(0, (largest,), columns=self.share.columns, arithmetic=exact)

    def write(arithmetic: Arithmetic) -> None:
      for start, block in zip(self.share.starts(member), values, strict=True):
        (found,) = self.spec.finish(Part(block, ()), [scale], arithmetic)
        self.share.store(found, codes.at[row], start)

    ordinary = finite & is_ordinary(scale)
    pl.when(ordinary)(lambda: write(self.arithmetic(ordinary=True)))
    pl.when(jnp.logical_not(ordinary))(lambda: write(exact))

    @pl.when(member == 0)
    def _scale() -> None:
      (scales[row],) = self.spec.row_results([scale])

  def _clear(self, ring_rows: Sequence[Any]) -> None:
    """Zeros beyond the end of the rows, where no copy goes.

    Their reader waits for copies that are issued later, at a barrier where every
    thread that wrote them arrives.
    """
    share = self.share
    if share.stored == share.columns:
      return
    for rows in ring_rows:
      for stage in range(self.stages):
        at = rows.at[stage, pl.ds(share.columns, share.stored - share.columns)]
        clear(at, interpreted=share.interpreted)
    plgpu.commit_smem()


def run(
  spec: RowCodes,
  matrices: Sequence[jax.Array],
  *,
  cores: int,
  shared_bytes: int,
  interpret: Any = None,
) -> tuple[jax.Array, jax.Array]:
  """Codes and scales.

  Args:
    spec: What to compute.
    matrices: [1, rows, columns] each, of 16-bit elements, sizes at least 1 and such
      that there are `stages`.
    cores: Streaming multiprocessors.
    shared_bytes: Of a thread block.
    interpret: None to compile, or the interpreter's parameters.

  Returns:
    Codes [1, rows, columns] and scales [1, rows, 1].
  """
  _, rows, columns = matrices[0].shape
  interpreted = interpret is not None
  share = share_of(columns, interpreted=interpreted)
  assert share is not None
  count = len(matrices)
  num_stages = stages(columns, matrices=count, shared_bytes=shared_bytes)
  groups = _CONSUMERS // share.members
  kernel = _Kernel(spec, count, rows, share, groups, min(rows, cores), num_stages)
  like = matrices[0]
  written = share.stored if interpreted else columns
  barriers = StageRing.barriers(
    num_stages=num_stages, copies=count * len(kernel.copies), consumers=share.members
  )
  meet = [plgpu.Barrier(num_barriers=groups, num_arrivals=share.members)] if interpreted else []
  codes, scales = plgpu.kernel(
    kernel.body,
    out_type=(
      sharding.out_struct((rows, written), spec.code_dtype, like),
      sharding.out_struct((rows,), jnp.dtype(jnp.float32), like),
    ),
    scratch_types=(
      *(plgpu.SMEM((num_stages, share.stored), x.dtype) for x in matrices),
      plgpu.SMEM((groups, 2, 2, share.warps), jnp.float32),
      *barriers,
      *meet,
    ),
    grid=(kernel.programs,),
    grid_names=("program",),
    num_threads=kernel.consumers + 1,
    thread_name="warpgroup",
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Lane,
      approx_math=True,
      # rows are written by copies alone, of which a barrier tells; what is exchanged has its own
      unsafe_no_auto_barriers=True,
      reduction_scratch_bytes=0,
    ),
    interpret=interpret,
  )(*(x.reshape(rows, columns) for x in matrices))
  return codes[:, :columns].reshape(like.shape), scales.reshape(1, rows, 1)
