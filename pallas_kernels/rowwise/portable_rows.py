"""Ops that need the whole row first, as plain `pl.pallas_call`s with explicit BlockSpecs.

The tile says which of three forms runs; `hw_profiles.rowwise.tiling` has their names:

    kept            a program loads its rows once, keeps them in registers,
                    reduces them and stores the results, in pieces of 2^i
                    columns, of which the last one alone is masked; or each of
                    several programs does so and stores its part of them
    walked twice    it walks the rows once for each round of statistics and once
                    more to store the results, a block at a time
    split           a program for each segment of the rows: a launch for each
                    round stores partial statistics, and the next one begins by
                    merging them in one order, that of the segments or that of
                    a tree, so that no merge depends on which program came first

Runs interpreted anywhere, and compiles for NVIDIA GPUs through Triton.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu_triton

from hw_profiles import RowConfig
from hw_profiles.rowwise.block_threads import warps
from hw_profiles.rowwise.tiling import row_tiling
from pallas_kernels import sharding
from pallas_kernels.rowwise import arithmetic
from pallas_kernels.rowwise.blocks import Window, as_kernel, group_index, kept_pieces, left, unravel
from pallas_kernels.rowwise.specs import Blocks, Part, RowSpec

# Partial statistics that a program asks for at once before it merges them: of 1 x 2^20 in 64
# segments on an H200 16 take 5.14 us, 32 4.75, 64 5.01; of 8 x 2^20 17.2, 15.9 and 18.6.
_MERGED_AT_ONCE = 32
# More than that are merged as one block, unless the caller fixed the order: 1 x 2^20 in 64 segments
# takes 4.38 us so, 4.74 one after another, 1 x 2^22 in 256 7.26 and 11.74; but 1 x 2^17 in 32
# 2.91 and 2.78. Not by more warps, of which each thread has all of a narrow block: quantize_rows of
# 1 x 2^20 in 256 by 16 warps 8.2 us, by 8 3.7. Other numbers than 2^i and several rows were not
# measured.
_MOST_MERGING_WARPS = 8
# Where a segment of a row was scaled the block goes through all of them after all, by so many: what
# few rows need is little code.
_RARELY_MERGED_AT_ONCE = 8


@dataclasses.dataclass(frozen=True)
class _Tiles:
  """How the problem is cut: sizes of the arrays, of a block, of a segment or a written part."""

  groups: int
  rows: int
  columns: int
  block_rows: int
  block_cols: int
  segments: int
  segment: int
  kept: bool
  merged_across: bool

  @property
  def row_blocks(self) -> int:
    return pl.cdiv(self.rows, self.block_rows)

  @property
  def steps(self) -> int:
    """Blocks of a segment."""
    return pl.cdiv(self.segment, self.block_cols)

  @property
  def width(self) -> int:
    """Columns of a ref: no block of any segment leaves it."""
    if self.kept:
      return max(self.block_cols, self.segments * self.segment)
    return (self.segments - 1) * self.segment + self.steps * self.block_cols

  def place(self, program: Any) -> tuple[Any, Any, Any]:
    """Group, row block and segment of a program; the segments of a row side by side."""
    group, row_block, segment = unravel(program, self.groups, self.row_blocks, self.segments)
    return group, row_block, segment


class _Rows:
  """One program's rows: what it loads and walks."""

  def __init__(self, tiles: _Tiles, program: Any) -> None:
    self.tiles = tiles
    _, row_block, self.segment = tiles.place(program)
    self.block = Window(
      tiles.block_rows,
      tiles.block_cols,
      rows_left=left(tiles.rows, row_block * tiles.block_rows, tiles.block_rows),
    )

  def pieces(self) -> list[Window]:
    """Those of a kept row, as far as there are columns in them."""
    tiles = self.tiles
    return [
      dataclasses.replace(piece, rows_left=self.block.rows_left)
      for piece in kept_pieces(tiles.block_rows, tiles.columns, tiles.block_cols)
    ]

  def written(self) -> Window:
    """The program's part of a kept row that has several writers."""
    tiles = self.tiles
    start = self.segment * tiles.segment
    whole = tiles.columns % tiles.segment == 0
    return dataclasses.replace(
      self.block,
      columns=tiles.segment,
      first_column=start,
      columns_left=None if whole else tiles.columns - start,
    )

  def window(self, step: Any) -> Window:
    """The block of one step."""
    tiles = self.tiles
    start = self.segment * tiles.segment + step * tiles.block_cols
    limit = None
    if tiles.segments > 1:
      end = jnp.minimum((self.segment + 1) * tiles.segment, tiles.columns)
      whole = tiles.segment % tiles.block_cols == 0 and tiles.columns % tiles.segment == 0
      limit = None if whole else end - start
    elif tiles.columns % tiles.block_cols:
      limit = tiles.columns - start
    return dataclasses.replace(self.block, first_column=start, columns_left=limit)

  def walk(self, body: Callable[[Window, Any], Any], first: Callable[[Window], Any]) -> Any:
    """`first` of the first block, `body` of each further one with what came before."""
    carry = first(self.window(0))
    if self.tiles.steps == 1:
      return carry
    return lax.fori_loop(
      jnp.int32(1),
      jnp.int32(self.tiles.steps),
      lambda step, carry: body(self.window(step), carry),
      carry,
    )


@dataclasses.dataclass(frozen=True)
class _Refs:
  """The refs of a launch, by what they are."""

  matrices: tuple[Any, ...]
  weights: tuple[Any, ...]
  partials: tuple[tuple[Any, ...], ...]
  outs: tuple[Any, ...]
  sums: tuple[Any, ...]
  row_outs: tuple[Any, ...]
  statistics: tuple[Any, ...]


def _merges_across(config: RowConfig, segments: int) -> bool:
  """Whether statistics of so many segments are merged as one block; see `_MOST_MERGING_WARPS`."""
  measured = config.block_rows == 1 and segments & (segments - 1) == 0
  return measured and segments > _MERGED_AT_ONCE and warps(config) <= _MOST_MERGING_WARPS


def _merged(
  spec: RowSpec,
  round_index: int,
  refs: tuple[Any, ...],
  rows: _Rows,
  *,
  branches: bool,
  interpreted: bool,
) -> Blocks:
  """The statistics of whole rows from those of their segments."""
  merged = functools.partial(_merged_in_order, spec, round_index, refs, rows)
  tiles = rows.tiles
  if not branches:
    return merged(plainly=False, interpreted=interpreted)
  if not tiles.merged_across or spec.ordered:
    return merged(plainly=True, interpreted=interpreted)
  window = dataclasses.replace(rows.block, columns=tiles.segments)
  is_plain, found = spec.merged_across(round_index, tuple(window.load(ref) for ref in refs))
  if is_plain is None:
    return found
  one_by_one = functools.partial(merged, plainly=False, interpreted=interpreted)
  return lax.cond(is_plain, lambda: found, lambda: one_by_one(at_once=_RARELY_MERGED_AT_ONCE))


def _merged_in_order(
  spec: RowSpec,
  round_index: int,
  refs: tuple[Any, ...],
  rows: _Rows,
  *,
  plainly: bool,
  interpreted: bool,
  at_once: int = _MERGED_AT_ONCE,
) -> Blocks:
  """`_merged`, one segment after another.

  Args:
    spec: What to compute.
    round_index: The round.
    refs: Its statistics.
    rows: The program's rows.
    plainly: Whether it is asked for a quicker way.
    interpreted: Whether an interpreter runs it.
    at_once: Segments whose statistics are loaded together.
  """
  segments = rows.tiles.segments

  def loaded(start: Any, count: int) -> list[Blocks]:
    return [tuple(rows.block.load_per_row(ref, start + i) for ref in refs) for i in range(count)]

  def add(carry: Blocks, parts: list[Blocks]) -> Blocks:
    found = spec.merged_plainly(round_index, [carry, *parts]) if plainly and parts else None
    if found is None:
      return one_by_one(carry, parts)
    is_plain, total = found
    return lax.cond(is_plain, lambda: total, lambda: one_by_one(carry, parts))

  def one_by_one(carry: Blocks, parts: list[Blocks]) -> Blocks:
    for part in parts:
      carry = spec.merge(round_index, carry, part)
      if interpreted:
        # a merge uses its first part twice, and XLA on a CPU (jax 0.11) computes it anew for
        # each use: the time to compile doubled with every second segment past 16
        carry = lax.optimization_barrier(carry)
    return carry

  first = min(segments, at_once)
  head, *rest = loaded(0, first)
  carry = add(head, rest)
  whole = segments // first
  if whole > 1:
    carry = lax.fori_loop(
      jnp.int32(1),
      jnp.int32(whole),
      lambda i, carry: add(carry, loaded(i * first, first)),
      carry,
    )
  return add(carry, loaded(whole * first, segments - whole * first))


def _body(
  program: Any,
  *flat: Any,
  unflatten: Callable[[tuple[Any, ...]], _Refs],
  spec: RowSpec,
  tiles: _Tiles,
  rounds: tuple[int, ...],
  finishing: bool,
  interpreted: bool,
) -> None:
  """One program of one launch.

  Args:
    program: Its number.
    flat: The refs.
    unflatten: Names them.
    spec: What to compute.
    tiles: How it is cut.
    rounds: The rounds that this launch reduces.
    finishing: Whether it stores the results; else the statistics of its round.
    interpreted: Whether an interpreter runs it.
  """
  refs = unflatten(flat)
  exact = arithmetic.in_kernel(interpreted=interpreted)
  rows = _Rows(tiles, program)
  settle = functools.partial(spec.settle, columns=tiles.columns, arithmetic=exact)
  settled = [
    settle(
      index,
      _merged(spec, index, partial, rows, branches=exact.branches, interpreted=interpreted),
    )
    for index, partial in enumerate(refs.partials)
  ]

  def load(windows: Sequence[Window], *, storing_sums: bool) -> list[Part]:
    # every load before the first store, which no load is moved across
    blocks = [tuple(window.load(ref) for ref in refs.matrices) for window in windows]
    weights = [tuple(window.load(ref) for ref in refs.weights) for window in windows]
    found = []
    for window, block, weight in zip(windows, blocks, weights, strict=True):
      values, sums = spec.values(block, exact)
      if storing_sums:
        for ref, summed in zip(refs.sums, sums, strict=True):
          window.store(ref, summed)
      found.append(Part(values, weight))
    return found

  def finish(windows: Sequence[Window], parts: Sequence[Part]) -> None:
    for window, part in zip(windows, parts, strict=True):
      for ref, block in zip(refs.outs, spec.finish(part, settled, exact), strict=True):
        window.store(ref, block)

  if tiles.kept:
    windows = rows.pieces()
    several = tiles.segments > 1
    parts = load(windows, storing_sums=not several)
    written = parts
    if several:
      windows = [rows.written()]
      # before the reduction, which would be waited for first
      written = load(windows, storing_sums=True)
    for index in rounds:
      settled.append(settle(index, spec.reduce(parts, settled, exact)))
    finish(windows, written)
  else:
    for index in rounds:
      known = tuple(settled)

      def part(window: Window, known: Any = known, *, first: bool = index == 0) -> Blocks:
        return spec.reduce(load((window,), storing_sums=first), known, exact)

      def merge(window: Window, carry: Blocks, index: int = index, part: Any = part) -> Blocks:
        return spec.merge(index, carry, part(window))

      statistics = rows.walk(merge, part)
      if finishing:
        settled.append(settle(index, statistics))
        continue
      for ref, block in zip(refs.statistics, statistics, strict=True):
        rows.block.store_per_row(ref, block, rows.segment)
    if not finishing:
      return

    def write(window: Window, carry: Any = ()) -> Any:
      finish((window,), load((window,), storing_sums=False))
      return carry

    rows.walk(write, lambda window: write(window))

  def write_row_results() -> None:
    for ref, block in zip(refs.row_outs, spec.row_results(settled), strict=True):
      rows.block.store_per_row(ref, block)

  if refs.row_outs and tiles.segments > 1:
    pl.when(rows.segment == 0)(write_row_results)
  else:
    write_row_results()


def run(
  spec: RowSpec,
  matrices: tuple[jax.Array, ...],
  weights: tuple[jax.Array, ...],
  *,
  config: RowConfig,
  problem: Any,
  interpret: bool,
) -> tuple[jax.Array, ...]:
  """`spec` of matrices [groups, rows, columns].

  Args:
    spec: What to compute.
    matrices: All of one shape, sizes at least 1.
    weights: Rows of weights, [groups or 1, 1, columns].
    config: The tile; to compile, one that `hw_profiles.plan` says fits.
    problem: The planner's view, by which the tile is cut.
    interpret: True runs it with the Pallas interpreter, on any device.

  Returns:
    Results in the spec's `out_dtypes`, then those of `sum_dtypes`, then what
    there is one of for each row, float32 [groups, rows, 1].
  """
  groups, rows, columns = matrices[0].shape
  tiling = row_tiling(problem, config)
  tiles = _Tiles(
    groups=groups,
    rows=rows,
    columns=columns,
    block_rows=config.block_rows,
    block_cols=config.block_cols,
    segments=tiling.column_blocks,
    segment=tiling.segment_columns,
    kept=tiling.form == "kept",
    merged_across=_merges_across(config, tiling.column_blocks),
  )
  launch = functools.partial(
    _launch, spec, matrices, weights, tiles=tiles, config=config, interpret=interpret
  )
  every = tuple(range(spec.rounds))
  if tiling.form != "split":
    return launch(rounds=every, finishing=True)
  partials: tuple[tuple[jax.Array, ...], ...] = ()
  sums: tuple[jax.Array, ...] = ()
  for index in every:
    found = launch(partials=partials, rounds=(index,), finishing=False)
    cut = len(spec.sum_dtypes) if index == 0 else 0
    sums += found[:cut]
    partials += (found[cut:],)
  out = launch(partials=partials, rounds=(), finishing=True)
  matrices_out = len(spec.out_dtypes)
  return (*out[:matrices_out], *sums, *out[matrices_out:])


def _launch(
  spec: RowSpec,
  matrices: tuple[jax.Array, ...],
  weights: tuple[jax.Array, ...],
  *,
  partials: tuple[tuple[jax.Array, ...], ...] = (),
  tiles: _Tiles,
  config: RowConfig,
  rounds: tuple[int, ...],
  finishing: bool,
  interpret: bool,
) -> tuple[jax.Array, ...]:
  """One `pallas_call`; returns results, sums, row results, statistics: those it has."""
  like = matrices[0]
  row_block = (None, tiles.block_rows)

  def whole_rows(program: Any) -> tuple[Any, ...]:
    group, row, _ = tiles.place(program)
    return group, row, 0

  matrix = pl.BlockSpec((*row_block, tiles.width), whole_rows)

  def weight(array: jax.Array) -> pl.BlockSpec:
    def index(program: Any) -> tuple[Any, ...]:
      return group_index(array, tiles.place(program)[0]), 0, 0

    return pl.BlockSpec((None, 1, tiles.width), index)

  def per_row(count: int) -> pl.BlockSpec:
    return pl.BlockSpec((*row_block, count), whole_rows)

  def struct(columns: int, dtype: Any) -> jax.ShapeDtypeStruct:
    return sharding.out_struct((tiles.groups, tiles.rows, columns), jnp.dtype(dtype), like)

  summing = 0 in rounds
  outs = [struct(tiles.columns, dtype) for dtype in spec.out_dtypes] if finishing else []
  sums = [struct(tiles.columns, dtype) for dtype in spec.sum_dtypes] if summing else []
  row_outs = [struct(1, jnp.float32)] * (spec.row_outputs if finishing else 0)
  count = 0 if finishing else spec.statistics[rounds[0]]
  statistics = [struct(tiles.segments, jnp.float32)] * count

  def unflatten(flat: tuple[Any, ...]) -> _Refs:
    taken = iter(flat)

    def take(count: int) -> tuple[Any, ...]:
      return tuple(next(taken) for _ in range(count))

    return _Refs(
      matrices=take(len(matrices)),
      weights=take(len(weights)),
      partials=tuple(take(len(partial)) for partial in partials),
      outs=take(len(outs)),
      sums=take(len(sums)),
      row_outs=take(len(row_outs)),
      statistics=take(len(statistics)),
    )

  flat_partials = [array for partial in partials for array in partial]
  return tuple(
    pl.pallas_call(
      as_kernel(
        functools.partial(
          _body,
          unflatten=unflatten,
          spec=spec,
          tiles=tiles,
          rounds=rounds,
          finishing=finishing,
          interpreted=interpret,
        ),
        interpret=interpret,
      ),
      out_shape=[*outs, *sums, *row_outs, *statistics],
      grid=(tiles.groups * tiles.row_blocks * tiles.segments,),
      in_specs=[
        *(matrix for _ in matrices),
        *(weight(array) for array in weights),
        *(per_row(tiles.segments) for _ in flat_partials),
      ],
      out_specs=[
        *(matrix for _ in (*outs, *sums)),
        *(per_row(1) for _ in row_outs),
        *(per_row(tiles.segments) for _ in statistics),
      ],
      compiler_params=None
      if interpret
      else plgpu_triton.CompilerParams(num_warps=warps(config), num_stages=config.num_stages),
      interpret=interpret,
      name=f"{type(spec).__name__.lower()}_{'finish' if finishing else 'reduce'}_portable",
    )(*matrices, *weights, *flat_partials)
  )
