"""The gradient of rms_norm on Hopper: long rows by TMA, read once (Pallas Mosaic GPU).

A thread block for each core stays and takes every n-th row, n the number of blocks. Its memory
warpgroup copies rows of x and d_y into a ring of stages in shared memory; each
consumer warpgroup takes whole rows in its turn:

    Σ x² and Σ g·x    from shared memory, exchanged by its four warps
    d_x, d_y·n        from shared memory again; d_x in the place of x, from where
                      TMA stores it; d_y·n added up in registers

A thread has the same columns in every row, so that a sum of d_weight stays in its
registers until the rows are through. `portable_rms_gradient.merge` adds the
consumers' sums up, in an order that their number fixes.

Against the portable kernel, whose programs have x, d_y, the weights and the sums
of a row in registers and no room for a row ahead: four rows are under way.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
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
from pallas_kernels.hopper.ring import StageRing
from pallas_kernels.hopper.tma import LARGEST_BOX
from pallas_kernels.rowwise import inverse_rms, portable_rms_gradient, warpgroup_sums
from pallas_kernels.rowwise.inverse_rms import InverseRms
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.row_stream import COPIED_COLUMNS, OTHER_BYTES
from pallas_kernels.rowwise.specs import wide

_CONSUMERS = 2
# Columns that a thread computes at once: of more, x, d_y and the weights fill its registers
# beside the sums.
_CHUNKS = 4
_MOST_STAGES = 8


@dataclasses.dataclass(frozen=True)
class Cut:
  """A row as a matrix, which a TMA box holds.

  Attributes:
    rows: Of the matrix.
    width: Its columns.
    stored: Its rows in shared memory: equal chunks of whole loads of each thread.
      Those beyond `rows` are zeros, which no copy touches: a box that hangs over
      would have the next row in them.
  """

  rows: int
  width: int
  stored: int

  @property
  def chunk(self) -> tuple[int, int]:
    """What is computed at once."""
    return self.stored // _CHUNKS, self.width

  @property
  def vector(self) -> int:
    """Columns of a thread's load."""
    return 4 if math.prod(self.chunk) % (4 * WARPGROUP_THREADS) == 0 else 2

  @property
  def columns(self) -> int:
    """In shared memory."""
    return self.stored * self.width


def cut_of(columns: int) -> Cut | None:
  """The matrix with the fewest zeros; None: there is none, as for no columns."""
  if columns == 0 or columns % COPIED_COLUMNS:
    return None
  found = []
  for width in (64, 128, 256):
    rows, rest = divmod(columns, width)
    step = max(2 * WARPGROUP_THREADS // width, 1) * _CHUNKS
    stored = -(-rows // step) * step
    if not rest and stored <= LARGEST_BOX:
      found.append(Cut(rows, width, stored))
  return min(found, key=lambda one: (one.columns, -one.width), default=None)


def stages(columns: int, *, shared_bytes: int) -> int:
  """Stages of 16-bit rows of x and d_y that fit beside the weights; 0: too few, or no such row.

  A multiple of the consumers, each of which thus has stages of its own, and two
  for each: in one it has a row, from the other the row before is being stored
  until the next one comes.
  """
  cut = cut_of(columns)
  if cut is None:
    return 0
  row = 2 * cut.columns
  room = (shared_bytes - OTHER_BYTES - row) // (2 * row)
  found = min(room, _MOST_STAGES) // _CONSUMERS * _CONSUMERS
  return found if found >= 2 * _CONSUMERS else 0


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One instance.

  Attributes:
    spec: What it computes.
    rows: Of x.
    columns: Of x.
    cut: Each row's.
    programs: Thread blocks.
    stages: Of the ring.
    interpreted: Whether an interpreter runs it.
  """

  spec: RmsNormGradient
  rows: int
  columns: int
  cut: Cut
  programs: int
  stages: int
  interpreted: bool

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
  ) -> None:
    """What every warpgroup of every thread block runs."""
    program = lax.axis_index("program")
    ring = StageRing(self.stages, full, empty)
    steps = lax.div(self.rows - program + self.programs - 1, jnp.int32(self.programs))
    there = pl.ds(0, self.cut.rows)
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup == _CONSUMERS)
    def _memory() -> None:
      plgpu.set_max_registers(FEWEST_REGISTERS, action="decrease")
      plgpu.copy_gmem_to_smem(weight, weights.at[there], weights_full)

      def one(step: Any, _: None) -> None:
        row = program + step * self.programs

        def copy(stage: Any, arrived: Any) -> None:
          plgpu.copy_gmem_to_smem(x.at[row], x_rows.at[stage, there], arrived)
          plgpu.copy_gmem_to_smem(d_out.at[row], d_rows.at[stage, there], arrived)

        ring.fill(step, copy)

      lax.fori_loop(jnp.int32(0), steps, one, None)
      ring.drain(steps)

    @pl.when(warpgroup < _CONSUMERS)
    def _consumer() -> None:
      registers = consumer_registers(_CONSUMERS, producer=FEWEST_REGISTERS)
      plgpu.set_max_registers(registers, action="increase")
      # every one does the weights': the same zeros
      self._clear(weights)
      for stage in range(self.stages // _CONSUMERS):
        for rows in (x_rows, d_rows):
          self._clear(rows.at[stage * _CONSUMERS + warpgroup])
      plgpu.commit_smem()
      plgpu.barrier_wait(weights_full)
      turns = lax.div(steps - warpgroup + _CONSUMERS - 1, jnp.int32(_CONSUMERS))

      def one(turn: Any, totals: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        step = turn * _CONSUMERS + warpgroup
        stage = ring.wait(step)
        row = _Row(
          self, x_rows.at[stage], d_rows.at[stage], weights,
          exchange.at[warpgroup, lax.rem(turn, jnp.int32(2))],
        )  # fmt: skip
        numbers = row.numbers()

        @pl.when(turn > 0)
        def _the_row_before_has_left() -> None:
          plgpu.wait_smem_to_gmem(0, wait_read_only=True)
          ring.release(step - _CONSUMERS)

        totals = row.store(totals, *numbers)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_rows.at[stage, there], d_x.at[program + step * self.programs])
        # where a row had no finite 1/rms they are NaN
        self._clear(x_rows.at[stage])
        return totals

      zeros = warpgroup_sums.zeros(self.cut.chunk, self.cut.vector, interpreted=self.interpreted)
      totals = lax.fori_loop(jnp.int32(0), turns, one, (zeros,) * _CHUNKS)
      plgpu.wait_smem_to_gmem(0, wait_read_only=True)
      pl.when(turns > 0)(lambda: ring.release((turns - 1) * _CONSUMERS + warpgroup))
      height = self.cut.chunk[0]
      for i, total in enumerate(totals):
        partial[program * _CONSUMERS + warpgroup, pl.ds(i * height, height)] = total

  def _clear(self, row: Any) -> None:
    """Zeros beyond the row's end."""
    cut = self.cut
    if cut.stored > cut.rows:
      at = row.at[pl.ds(cut.rows, cut.stored - cut.rows)]
      warpgroup_sums.clear(at, interpreted=self.interpreted)


@dataclasses.dataclass(frozen=True)
class _Row:
  """A row in shared memory, and what a warpgroup does with it."""

  kernel: _Kernel
  x: Any
  d_out: Any
  weights: Any
  exchange: Any

  def _load(self, ref: Any, chunk: int) -> jax.Array:
    height = self.kernel.cut.chunk[0]
    at = ref.at[pl.ds(chunk * height, height)]
    cut = self.kernel.cut
    return wide(warpgroup_sums.load(at, cut.chunk, cut.vector, interpreted=self.kernel.interpreted))

  def _g(self, chunk: int) -> jax.Array:
    return self.kernel.spec.scaled(self._load(self.d_out, chunk), self._load(self.weights, chunk))

  def _reduced(
    self, slot: int, terms: Callable[[int], tuple[jax.Array, ...]], *, largest: bool = False
  ) -> tuple[jax.Array, ...]:
    """Sums, or maxima, over the row of what a chunk has."""
    combine = jnp.maximum if largest else jnp.add
    found = terms(0)
    for chunk in range(1, _CHUNKS):
      found = tuple(map(combine, found, terms(chunk)))
    return warpgroup_sums.reduced(
      found,
      self.exchange.at[pl.ds(slot, len(found))],
      vector_size=self.kernel.cut.vector,
      largest=largest,
      interpreted=self.kernel.interpreted,
    )

  def numbers(self) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Power and factor of 1/rms, mean(g·n).

    Both sums are of x as it is, so that neither waits for the other. Where the
    squares, or the sum of products, say that terms may have overflowed or
    vanished, the row is gone through again with a power of two.
    """
    spec, columns = self.kernel.spec, self.kernel.columns

    def terms(chunk: int) -> tuple[jax.Array, ...]:
      x = self._load(self.x, chunk)
      return x * x, self._g(chunk) * x

    square, product = self._reduced(0, terms)
    magnitude = jnp.maximum(product, -product)
    plain = inverse_rms.is_plain(square, eps=spec.eps) & inverse_rms.is_plain(magnitude, eps=0.0)

    def at_once() -> tuple[jax.Array, jax.Array, jax.Array]:
      factor = lax.rsqrt(square * (1.0 / columns) + spec.eps)
      return jnp.ones_like(factor), factor, product * factor * (1.0 / columns)

    return lax.cond(plain, at_once, self._numbers_of_any)

  def _numbers_of_any(self) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`numbers` of a row with any values."""
    spec, columns = self.kernel.spec, self.kernel.columns

    def magnitudes(chunk: int) -> tuple[jax.Array]:
      return (jnp.abs(self._load(self.x, chunk)),)

    (largest,) = self._reduced(2, magnitudes, largest=True)
    power = inverse_rms.coarse_power(jnp.maximum(largest, math.sqrt(spec.eps)))

    def squares(chunk: int) -> tuple[jax.Array]:
      scaled = self._load(self.x, chunk) * power
      return (scaled * scaled,)

    (square,) = self._reduced(3, squares)
    inverse = InverseRms(power, lax.rsqrt(square * (1.0 / columns) + (power * spec.eps) * power))

    def products(chunk: int) -> tuple[jax.Array]:
      return (self._g(chunk) * inverse.normalise(self._load(self.x, chunk)),)

    (product,) = self._reduced(4, products)
    return power, inverse.factor, product * (1.0 / columns)

  def store(
    self, totals: tuple[jax.Array, ...], power: jax.Array, factor: jax.Array, mean: jax.Array
  ) -> tuple[jax.Array, ...]:
    """d_x in the place of x; the totals with d_y·n."""
    kernel, inverse = self.kernel, InverseRms(power, factor)
    height = kernel.cut.chunk[0]
    found = []
    for chunk, total in enumerate(totals):
      d_out = self._load(self.d_out, chunk)
      normalised = inverse.normalise(self._load(self.x, chunk))
      d_x = kernel.spec.d_x(self._g(chunk), normalised, mean, inverse, None)
      self.x[pl.ds(chunk * height, height)] = d_x
      total = total + d_out * normalised
      found.append(warpgroup_sums.here(total, kernel.cut.vector, interpreted=kernel.interpreted))
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
  cut = cut_of(columns)
  assert cut is not None
  interpreted = interpret is not None
  num_stages = stages(columns, shared_bytes=shared_bytes)
  kernel = _Kernel(spec, rows, columns, cut, min(rows, cores), num_stages, interpreted)
  box = (cut.stored, cut.width)
  matrix = (rows, cut.rows, cut.width)
  d_x, partial = plgpu.kernel(
    kernel.body,
    out_type=(
      sharding.out_struct(matrix, spec.dtype, x),
      sharding.out_struct((kernel.programs * _CONSUMERS, *box), jnp.dtype(jnp.float32), x),
    ),
    scratch_types=(
      plgpu.SMEM((num_stages, *box), x.dtype),
      plgpu.SMEM((num_stages, *box), d_out.dtype),
      plgpu.SMEM(box, weight.dtype),
      plgpu.SMEM((_CONSUMERS, 2, 5, 4), jnp.float32),
      plgpu.Barrier(),
      *StageRing.barriers(num_stages=num_stages, copies=2, consumers=1),
    ),
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
  )(x.reshape(matrix), d_out.reshape(matrix), weight.reshape(matrix[1:]))
  merge = functools.partial(portable_rms_gradient.merge, cores=cores, interpret=interpreted)
  d_weight = merge(partial.reshape(1, -1, cut.columns), spec.weight_dtype, columns=columns)
  return d_x.reshape(x.shape), d_weight
