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

Rows that are no whole lines are shifted, as those of `hopper_rows` are, and so are their
gradients: copied and stored by whole lines all the same. A row is shared by two warpgroups
where one has no registers for it; a block then has one sum, and half the time of a row
before its first and behind its last.

On an H200, with the result, us: 1024 x 12288 takes 37.1, where each warpgroup had rows and a
sum of its own 40.5, with the first rows first 38.6; 7239 x 12288 takes 224, where L2 was not
told to keep rows 228; 7239 x 5000 takes 92, in the portable kernels 113.
"""

import dataclasses
import functools
import math
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
from pallas_kernels.rowwise import inverse_rms, portable_rms_gradient, row_numbers, warpgroup_sums
from pallas_kernels.rowwise.inverse_rms import InverseRms
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
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
# here where a warpgroup has a row for itself, and where two share one.
_MOST_NUMBERS = 48
_LARGEST_SHARE = 64
MOST_COLUMNS = _CONSUMERS * WARPGROUP_THREADS * _LARGEST_SHARE
_MOST_STAGES = 8
# Exchanged by the warps of a group: of a row two sums, and of one with any values three more.
_EXCHANGED = 5


def share_of(columns: int, *, interpreted: bool = False) -> Share | None:
  """The pieces with the fewest zeros beyond the row's end; None: the kernel takes no such row."""
  if not COPIED_COLUMNS <= columns <= MOST_COLUMNS or columns % COLUMNS_STEP:
    return None
  members = 1 if columns <= WARPGROUP_THREADS * _MOST_NUMBERS else _CONSUMERS
  # others are whole lines
  most_shift = most_shift_of(columns) if columns % COPIED_COLUMNS else 0
  found = [Share(columns, members, one, interpreted, most_shift, fixed=True) for one in VECTORS]
  return min(found, key=lambda one: (one.stored, -one.vector))


def stages(columns: int, *, shared_bytes: int) -> int:
  """Stages of 16-bit rows of x and d_y that fit beside the weights; 0: too few, or no such row.

  A multiple of the groups, each of which thus has stages of its own, and two
  for each: in one it has a row, from the other the row before is being stored
  until the next one comes.
  """
  share = share_of(columns)
  if share is None:
    return 0
  groups = _CONSUMERS // share.members
  sums = 4 * share.stored if groups > 1 else 0
  room = shared_bytes - OTHER_BYTES - BARRIER_BYTES - 2 * share.stored - sums
  found = min(room // (4 * share.room), _MOST_STAGES) // groups * groups
  return found if found >= 2 * groups else 0


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One instance.

  Attributes:
    spec: What it computes.
    rows: Of x.
    share: How a group of warpgroups shares a row.
    programs: Thread blocks.
    stages: Of the ring.
  """

  spec: RmsNormGradient
  rows: int
  share: Share
  programs: int
  stages: int

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
    sums = [plgpu.SMEM((share.stored,), jnp.float32), plgpu.Barrier()]
    meet = plgpu.Barrier(num_barriers=self.groups, num_arrivals=share.members)
    return (
      plgpu.SMEM(row, x),
      plgpu.SMEM(row, d_out),
      plgpu.SMEM((share.stored,), weight),
      plgpu.SMEM((self.groups, 2, _EXCHANGED, share.warps), jnp.float32),
      plgpu.Barrier(num_arrivals=len(self.weight_copies)),
      Arrivals.scratch(self.stages) if self.kept else full,
      empty,
      *(sums if self.groups > 1 else []),
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
    sums, meet = others[: 2 * (groups > 1)], others[2 * (groups > 1) :]
    program = lax.axis_index("program")
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
        _copy(weight.at[pl.ds(start, size)], weights.at[pl.ds(start, size)], weights_full)

      def one(step: Any, _: None) -> None:
        row = self.row(step)
        shift = share.shift(row)

        def copy(stage: Any, arrived: Any) -> None:
          parts = [
            (matrix.at[row], rows.at[stage, pl.ds(shift, share.columns)])
            for matrix, rows in ((x, x_rows), (d_out, d_rows))
          ]
          if self.kept:
            arrived.copy(parts, stage)
            return
          for part, there in parts:
            _copy(part, there, arrived)

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

      def one(turn: Any, totals: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        step = turn * groups + group
        stage = ring.wait(step)
        number = self.row(step)
        shift = share.shift(number)
        row = _Row(
          self.spec, share, x_rows.at[stage], d_rows.at[stage], weights, starts, shift, member,
          exchange.at[group, lax.rem(turn, jnp.int32(2))], meet[0].at[group] if meet else None,
        )  # fmt: skip
        found = row.numbers()

        @pl.when(turn > 0)
        def _the_row_before_has_left() -> None:
          plgpu.wait_smem_to_gmem(0, wait_read_only=True)
          ring.release(step - groups)

        totals = row.store(totals, *found)
        plgpu.commit_smem()
        self._send(x_rows.at[stage], d_x.at[number], member, shift)
        return totals

      zeros = (share.zeros(),) * share.pieces
      totals = lax.fori_loop(jnp.int32(0), turns, one, zeros)
      plgpu.wait_smem_to_gmem(0, wait_read_only=True)
      pl.when(turns > 0)(lambda: ring.release((turns - 1) * groups + group))
      self._store_sums(partial.at[program], list(zip(starts, totals, strict=True)), group, sums)

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
    self, partial: Any, totals: list[tuple[Any, jax.Array]], group: Any, sums: tuple[Any, ...]
  ) -> None:
    """The block's sum of d_y·n, of a member's pieces that begin at these columns."""
    share = self.share

    def store(start: Any, total: jax.Array) -> None:
      partial[pl.ds(start, share.piece)] = total

    if not sums:
      for start, total in totals:
        store(start, total)
      return
    second, there = sums

    @pl.when(group > 0)
    def _give() -> None:
      for start, total in totals:
        share.store_shared(total, second, start)
      plgpu.barrier_arrive(there)

    @pl.when(group == 0)
    def _add() -> None:
      plgpu.barrier_wait(there)
      for start, total in totals:
        store(start, total + share.load(second, start))


def _copy(part: Any, there: Any, arrived: Any) -> None:
  plgpu.copy_gmem_to_smem(part, there, arrived, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)


class _Row:
  """A row, and what a member of a group does with it."""

  def __init__(
    self,
    spec: RmsNormGradient,
    share: Share,
    x: Any,
    d_out: Any,
    weights: Any,
    starts: list[Any],
    shift: Any,
    member: Any,
    exchange: Any,
    meet: Any,
  ) -> None:
    self.spec, self.share, self.weights, self.starts = spec, share, weights, starts
    self.member, self.exchange, self.meet = member, exchange, meet
    self.x_row, self.shift = x, shift
    self.x, self.d_out = (
      [share.of_row(share.load(row, start + shift), start) for start in starts]
      for row in (x, d_out)
    )

  def _g(self, piece: int) -> jax.Array:
    """Computed where it is needed: registers for it would be spilled, and arithmetic is free."""
    weight = self.share.load(self.weights, self.starts[piece])
    return self.spec.scaled(self.d_out[piece], weight)

  def _every_g(self) -> list[jax.Array]:
    return [self._g(piece) for piece in range(self.share.pieces)]

  def numbers(self) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Power and factor of 1/rms, mean(g·n).

    Both sums are of x as it is, so that neither waits for the other. Where the
    squares, or the sum of products, say that terms may have overflowed or
    vanished, the row is gone through again with a power of two.
    """
    spec, columns = self.spec, self.share.columns
    square, product = self._sums(0, (self.x, self.x), (self._every_g(), self.x))
    magnitude = jnp.maximum(product, -product)
    plain = inverse_rms.is_plain(square, eps=spec.eps) & inverse_rms.is_plain(magnitude, eps=0.0)

    def at_once() -> tuple[jax.Array, jax.Array, jax.Array]:
      factor = lax.rsqrt(square * (1.0 / columns) + spec.eps)
      return jnp.ones_like(factor), factor, product * factor * (1.0 / columns)

    return lax.cond(plain, at_once, self._numbers_of_any)

  def _numbers_of_any(self) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`numbers` of a row with any values."""
    spec, columns = self.spec, self.share.columns
    largest = row_numbers.largest(self.share, self.x, self.member, self.exchange.at[2], self.meet)
    power = inverse_rms.coarse_power(jnp.maximum(largest, math.sqrt(spec.eps)))
    scaled = [x * power for x in self.x]
    (square,) = self._sums(3, (scaled, scaled))
    inverse = InverseRms(power, lax.rsqrt(square * (1.0 / columns) + (power * spec.eps) * power))
    normalised = [inverse.normalise(x) for x in self.x]
    (product,) = self._sums(4, (self._every_g(), normalised))
    return power, inverse.factor, product * (1.0 / columns)

  def _sums(
    self, slot: int, *pairs: tuple[list[jax.Array], list[jax.Array]]
  ) -> tuple[jax.Array, ...]:
    """Σ a·b over the row of each pair; `slot` is where the first one's are exchanged."""
    exchanged = self.exchange.at[pl.ds(slot, len(pairs))]
    return row_numbers.products(self.share, pairs, self.member, exchanged, self.meet)

  def store(
    self, totals: tuple[jax.Array, ...], power: jax.Array, factor: jax.Array, mean: jax.Array
  ) -> tuple[jax.Array, ...]:
    """d_x in the place of x; the totals with d_y·n."""
    share, inverse = self.share, InverseRms(power, factor)
    found = []
    for piece, total in enumerate(totals):
      normalised = inverse.normalise(self.x[piece])
      d_x = self.spec.d_x(self._g(piece), normalised, mean, inverse, None)
      share.store_shared(d_x, self.x_row, self.starts[piece] + self.shift)
      total = total + self.d_out[piece] * normalised
      found.append(warpgroup_sums.here(total, share.vector, interpreted=share.interpreted))
    return tuple(found)


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
  programs = pl.cdiv(rows, pl.cdiv(rows, cores))
  kernel = _Kernel(spec, rows, share, programs, num_stages)
  d_x, partial = plgpu.kernel(
    kernel.body,
    out_type=(
      sharding.out_struct((rows, columns), spec.dtype, x),
      sharding.out_struct((kernel.programs, share.stored), jnp.dtype(jnp.float32), x),
    ),
    scratch_types=kernel.scratch(x.dtype, d_out.dtype, weight.dtype),
    grid=(kernel.programs,),
    grid_names=("program",),
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
  d_weight = merge(partial[None], spec.weight_dtype, columns=columns)
  return d_x.reshape(x.shape), d_weight
