"""Attention of a few new queries on a key/value cache, as plain `pl.pallas_call`s.

The query heads that read one key head are rows of one tile, so that the cache
is read once. The keys of a sequence are cut into parts, each a program; where
there is more than one part, a second kernel merges their states, of part p a
peak m_p, a sum of weights l_p and a weighted sum of values o_p:

    m = max_p m_p,    out = sum_p o_p 2^(m_p - m) / sum_p l_p 2^(m_p - m)

Both sums are trees over parts, in an order that their number and the shapes of
query and values fix. The parts depend on the sequence's own length, the window,
`block_kv` and `num_splits` alone, so a sequence's bits do not depend on the
others in a batch.

Pages are read where they lie: a key's page is looked up in the page table.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu_triton

from hw_profiles import DecodeConfig
from hw_profiles.attention.multistage import padded_dim
from pallas_kernels import sharding
from pallas_kernels.attention import softmax
from pallas_kernels.attention.blocks import (
  Products,
  kernel_body,
  load_block,
  load_limited,
  store_block,
  store_vector,
)
from pallas_kernels.attention.masks import Band, block_positions
from pallas_kernels.attention.operands import DecodeOperands, Sizes
from pallas_kernels.attention.portable import compiler_params, is_spec
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.softmax import LogitRule, SoftmaxState
from pallas_kernels.portable_support import batch_index

# Rows of a tile: Triton's dot takes 16 or more, and 64 fill a wgmma.
_MIN_ROWS = 16
_MAX_ROWS = 64
DEFAULT_WARPS = 4
# What the merge takes is a wait for L2, if all it reads of a row is loaded at once, and what a
# program does alone: one of a warp, which has no barrier. It loads 32 numbers a thread, 64 of 64
# parts, so that 32 columns stay one line of L2. On an H200, of 4 rows x 128 columns of 8 key heads,
# an empty kernel takes 0.6 us, and the merge
#   of 16 parts 1.22 us by 64 columns, 1.41 by 128, 1.26 by 32
#   of 32 parts 1.44 by 32, 1.58 by 64
#   of 64 parts 1.51 by 32, 1.58 by 16
# where rows padded to 16, as the products want them, made it 1.47, 1.82 and 2.11.
_MERGE_NUMBERS = 1024
_MERGE_COLUMNS = 32
_MERGE_PARTS = 64
_MERGE_WARPS = 1


@dataclasses.dataclass(frozen=True)
class _Grid:
  """Programs: sequences x key heads x blocks of rows x parts, the last the fastest.

  Attributes:
    sizes: Of the attention.
    block_rows: Rows of a tile.
    num_splits: Parts of the keys.
  """

  sizes: Sizes
  block_rows: int
  num_splits: int

  @classmethod
  def create(cls, sizes: Sizes, num_splits: int) -> "_Grid":
    """For a tile that holds all rows of a key head, up to 64."""
    rows = sizes.seq_q * sizes.group
    return cls(sizes, min(max(padded_dim(rows), _MIN_ROWS), _MAX_ROWS), num_splits)

  @property
  def rows(self) -> int:
    """Rows of a key head: queries x query heads that read it."""
    return self.sizes.seq_q * self.sizes.group

  @property
  def row_blocks(self) -> int:
    """Tiles of a key head."""
    return pl.cdiv(self.rows, self.block_rows)

  def programs(self, parts: int) -> int:
    """Programs with `parts` for each tile."""
    return self.sizes.batch * self.sizes.kv_heads * self.row_blocks * parts

  def tile(self, program: Any, parts: int) -> tuple[Any, Any, Any, Any]:
    """Sequence, key head, block of rows and part."""
    found = []
    for count in (parts, self.row_blocks, self.sizes.kv_heads):
      found.append(program % count)
      program = program // count
    return (program, *found[::-1])

  def rows_left(self, row_block: Any) -> Any:
    """Rows that a tile has; None: all."""
    return None if self.rows % self.block_rows == 0 else self.rows - row_block * self.block_rows


@dataclasses.dataclass(frozen=True)
class _Split:
  """What the first kernel does.

  Attributes:
    rule: What is computed.
    grid: Its programs.
    block_kv: Keys of a step.
    paged: Whether there is a page table.
    interpreted: Whether the Pallas interpreter runs it.
  """

  rule: AttentionRule
  grid: _Grid
  block_kv: int
  paged: bool
  interpreted: bool

  @property
  def logits(self) -> LogitRule:
    """From dot products to logits."""
    return self.rule.logits(has_bias=False)

  @property
  def products(self) -> Products:
    """Its products."""
    return Products(self.rule.precision)

  @property
  def rows_differ(self) -> bool:
    """Whether keys that are loaded are not seen by all rows."""
    return self.grid.sizes.seq_q > 1 or self.rule.band.left is not None

  def queries(self, row_block: Any) -> tuple[Any, int]:
    """First query of a tile, and queries that it may have rows of."""
    group = self.grid.sizes.group
    return row_block * self.grid.block_rows // group, (self.grid.block_rows - 1) // group + 2

  def own_blocks(self, band: Band, row_block: Any, part: Any) -> tuple[Any, Any]:
    """First block of keys, and end, of one part of those that a tile visits."""
    first_query, queries = self.queries(row_block)
    blocks = band.key_blocks(first_query, block_q=queries, block_kv=self.block_kv)
    parts = self.grid.num_splits
    share = (blocks.visited + (parts - 1)) // parts
    first = blocks.first + part * share
    return first, jnp.minimum(first + share, blocks.end)

  def load(self, ref: Any, table_ref: Any, start: Any, length: Any, size: int) -> jax.Array:
    """A block of K or V, 0 from `length` on."""
    block, width = self.block_kv, padded_dim(size)
    left = length - start
    if not self.paged:
      return load_block(ref.at[pl.ds(start, block), :], (block, width), rows_left=left, width=size)
    page_size = ref.shape[1]
    keys = start + lax.broadcasted_iota(jnp.int32, (block,), 0)
    inside = keys < length
    columns = lax.broadcasted_iota(jnp.int32, (block, width), 1)
    mask = (block_positions(start, block, axis=0) < length) & (columns < size)
    pages = self._gather(table_ref, (keys // page_size,), inside)
    return self._gather(ref, (pages, keys % page_size, slice(None)), mask)

  def _gather(self, ref: Any, index: tuple[Any, ...], mask: jax.Array) -> jax.Array:
    """ref at vectors of indices, 0 where `mask` is False."""
    if not self.interpreted:
      return plgpu_triton.load(ref.at[index], mask=mask, other=0)
    # the interpreter gathers without a mask, and takes the nearest for an index that is not there
    found = ref[index]
    return jnp.where(mask, found, jnp.zeros_like(found))


def _split_body(split: _Split, program: Any, refs: DecodeOperands, write: Any) -> None:
  """One part of one tile."""
  grid, rule = split.grid, split.rule
  sizes = grid.sizes
  _, _, row_block, part = grid.tile(program, grid.num_splits)
  length = jnp.clip(refs.lengths[0], 0, sizes.seq_kv)
  band = rule.band.of(seq_q=sizes.seq_q, seq_kv=length)
  left = grid.rows_left(row_block)
  q = load_block(
    refs.query, (grid.block_rows, padded_dim(sizes.head_dim)), rows_left=left, width=sizes.head_dim
  )
  rows = block_positions(row_block * grid.block_rows, grid.block_rows, axis=0)
  queries = rows // sizes.group

  def visit(block: Any, state: SoftmaxState) -> SoftmaxState:
    start = block * split.block_kv
    k = split.load(refs.key, refs.page_table, start, length, sizes.head_dim)
    v = split.load(refs.value, refs.page_table, start, length, sizes.value_dim)
    scores = split.logits.scores(split.products.rows(q, k))
    visible = band.visible(queries, block_positions(start, split.block_kv, axis=1))
    scores = jnp.where(visible, scores, jnp.full_like(scores, -jnp.inf))
    return softmax.step(
      state,
      scores,
      exponent=split.logits.exponent,
      weigh=lambda weights: split.products.visible(
        weights, v, visible if split.rows_differ else None
      ),
    )

  first, end = (
    lax.convert_element_type(x, jnp.int32) for x in split.own_blocks(band, row_block, part)
  )
  state = softmax.start(grid.block_rows, padded_dim(sizes.value_dim))
  write(lax.fori_loop(first, end, visit, state), left)


def decode(
  rule: AttentionRule,
  operands: DecodeOperands,
  *,
  config: DecodeConfig,
  num_splits: int,
  interpret: bool,
) -> tuple[jax.Array, jax.Array]:
  """out [batch, T, N, Hv] in the query's dtype, and float32 residual [batch, N, T].

  Args:
    rule: What is computed; its band is causal and "bottom_right".
    operands: Arrays of a dtype of at most 32 bits; sizes at least 1.
    config: Tile sizes; to compile, ones that `hw_profiles.plan` says fit.
    num_splits: Parts that each sequence's keys are cut into.
    interpret: True runs it with the Pallas interpreter, on any device.
  """
  sizes = operands.sizes
  grid = _Grid.create(sizes, num_splits)
  split = _Split(rule, grid, config.block_kv, operands.page_table is not None, interpret)
  query = operands.query
  packed = query.reshape(query.shape[0], sizes.seq_q, sizes.kv_heads, sizes.group, -1)
  packed = jnp.swapaxes(packed, 1, 2).reshape(query.shape[0], sizes.kv_heads, grid.rows, -1)
  operands = operands._replace(query=packed)
  params = (
    None
    if interpret
    else compiler_params(num_warps=config.num_warps or DEFAULT_WARPS, num_stages=config.num_stages)
  )
  how = {"compiler_params": params, "interpret": interpret}
  out, residual = (
    _whole(split, operands, how) if num_splits == 1 else _in_parts(split, operands, how)
  )
  out = out.reshape(sizes.batch, sizes.kv_heads, sizes.seq_q, sizes.group, sizes.value_dim)
  residual = residual.reshape(sizes.batch, sizes.kv_heads, sizes.seq_q, sizes.group)
  return (
    jnp.swapaxes(out, 1, 2).reshape(sizes.batch, sizes.seq_q, sizes.heads, sizes.value_dim),
    jnp.swapaxes(residual, 2, 3).reshape(sizes.batch, sizes.heads, sizes.seq_q),
  )


def _operand_specs(split: _Split, operands: DecodeOperands) -> list[pl.BlockSpec]:
  """What a program of the first kernel is handed."""
  grid, sizes = split.grid, split.grid.sizes

  def tile(program: Any) -> tuple[Any, Any, Any, Any]:
    return grid.tile(program, grid.num_splits)

  def cache(array: Any, size: int) -> pl.BlockSpec:
    width = padded_dim(size)
    if split.paged:
      block: tuple[int | None, ...] = (None, *array.shape[1:3], None, width)
    else:
      block = (None, pl.cdiv(sizes.seq_kv, split.block_kv) * split.block_kv, None, width)
    lead = len(block) - 3

    def index_map(program: Any) -> tuple[Any, ...]:
      batch, head, _, _ = tile(program)
      return (batch_index(array, batch), *(0,) * lead, head, 0)

    return pl.BlockSpec(block, index_map)

  def query_index(program: Any) -> tuple[Any, ...]:
    batch, head, row_block, _ = tile(program)
    return batch_index(operands.query, batch), head, row_block, 0

  def by_batch(array: Any, block: tuple[int | None, ...]) -> pl.BlockSpec:
    rest = (0,) * (len(block) - 1)
    return pl.BlockSpec(block, lambda program: (batch_index(array, tile(program)[0]), *rest))

  specs = DecodeOperands(
    query=pl.BlockSpec((None, None, grid.block_rows, padded_dim(sizes.head_dim)), query_index),
    key=cache(operands.key, sizes.head_dim),
    value=cache(operands.value, sizes.value_dim),
    lengths=by_batch(operands.lengths, (1,)),
    page_table=None
    if operands.page_table is None
    else by_batch(operands.page_table, (None, operands.page_table.shape[1])),
  )
  return jax.tree.leaves(specs, is_leaf=is_spec)


def _whole(
  split: _Split, operands: DecodeOperands, how: dict[str, Any]
) -> tuple[jax.Array, jax.Array]:
  """One part: the first kernel finishes; out [batch, K, rows, Hv] and residual [batch, K, rows]."""
  grid = split.grid
  structure = jax.tree.structure(operands)

  def body(program: Any, *refs: Any) -> None:
    out_ref, residual_ref = refs[-2:]

    def write(state: SoftmaxState, left: Any) -> None:
      _store_finished(grid, state, out_ref, residual_ref, left)

    _split_body(split, program, jax.tree.unflatten(structure, refs[:-2]), write)

  out, residual = pl.pallas_call(
    kernel_body(body, interpret=split.interpreted, like=operands.query),
    out_shape=_results(grid, operands.query),
    grid=(grid.programs(1),),
    in_specs=_operand_specs(split, operands),
    out_specs=_result_specs(grid),
    name="decode_portable",
    **how,
  )(*jax.tree.leaves(operands))
  return out, residual


def _in_parts(
  split: _Split, operands: DecodeOperands, how: dict[str, Any]
) -> tuple[jax.Array, jax.Array]:
  """Parts, then their merge; results as `_whole`."""
  grid, sizes = split.grid, split.grid.sizes
  structure = jax.tree.structure(operands)
  parts, width = grid.num_splits, padded_dim(sizes.value_dim)

  def body(program: Any, *refs: Any) -> None:
    peak_ref, total_ref, out_ref = refs[-3:]

    def write(state: SoftmaxState, left: Any) -> None:
      store_vector(peak_ref, state.peak, left=left)
      store_vector(total_ref, state.total, left=left)
      store_block(out_ref, state.out, rows_left=left, width=sizes.value_dim)

    _split_body(split, program, jax.tree.unflatten(structure, refs[:-3]), write)

  lead = (sizes.batch, sizes.kv_heads, parts, grid.rows)
  shapes = [
    sharding.out_struct(shape, jnp.float32, operands.query)
    for shape in (lead, lead, (*lead, sizes.value_dim))
  ]

  def part_index(program: Any) -> tuple[Any, Any, Any, Any]:
    batch, head, row_block, part = grid.tile(program, parts)
    return batch, head, part, row_block

  vector = pl.BlockSpec((None, None, None, grid.block_rows), part_index)
  matrix = pl.BlockSpec(
    (None, None, None, grid.block_rows, width), lambda program: (*part_index(program), 0)
  )
  states = pl.pallas_call(
    kernel_body(body, interpret=split.interpreted, like=operands.query),
    out_shape=shapes,
    grid=(grid.programs(parts),),
    in_specs=_operand_specs(split, operands),
    out_specs=[vector, vector, matrix],
    name="decode_portable_parts",
    **how,
  )(*jax.tree.leaves(operands))
  return _merged(split, operands, states, how)


def _merge_tile(grid: _Grid) -> tuple[int, int, int]:
  """Parts, rows and columns that a program of the merge loads at once."""
  parts = min(1 << (grid.num_splits - 1).bit_length(), _MERGE_PARTS)
  width = padded_dim(grid.sizes.value_dim)
  columns = min(width, max(_MERGE_NUMBERS // parts, _MERGE_COLUMNS))
  rows = max(_MERGE_NUMBERS // (parts * columns), 1)
  return parts, min(rows, 1 << (grid.rows - 1).bit_length()), columns


def _merged(
  split: _Split, operands: DecodeOperands, states: list[jax.Array], how: dict[str, Any]
) -> tuple[jax.Array, jax.Array]:
  """The states of the parts merged by a kernel of its own; results as `_whole`."""
  sizes, parts = split.grid.sizes, split.grid.num_splits
  chunk, rows, columns = _merge_tile(split.grid)
  # without products, rows need not fill a tile of 16
  grid = dataclasses.replace(split.grid, block_rows=rows)
  column_blocks = pl.cdiv(sizes.value_dim, columns)
  chunks = pl.cdiv(parts, chunk)

  def merge(program: Any, *refs: Any) -> None:
    _, _, row_block, column_block = grid.tile(program, column_blocks)
    left = grid.rows_left(row_block)
    columns_left = None
    if sizes.value_dim % columns:
      columns_left = sizes.value_dim - column_block * columns

    def some(first: Any) -> SoftmaxState:
      parts_left = None if parts % chunk == 0 else parts - first
      peak, total = (
        load_limited(ref.at[pl.ds(first, chunk), :], (chunk, rows), (parts_left, left))
        for ref in refs[:2]
      )
      out = load_limited(
        refs[2].at[pl.ds(first, chunk), :, :],
        (chunk, rows, columns),
        (parts_left, left, columns_left),
      )
      if parts_left is not None:
        there = lax.broadcasted_iota(jnp.int32, (chunk, rows), 0) < parts_left
        peak = jnp.where(there, peak, jnp.full_like(peak, -jnp.inf))
      return softmax.merge_parts(SoftmaxState(peak, total, out))

    state = some(0)
    if chunks > 1:
      state = lax.fori_loop(
        jnp.int32(1),
        jnp.int32(chunks),
        lambda index, merged: softmax.merge(merged, some(index * chunk)),
        state,
      )
    out, residual = softmax.finish(state)
    out_ref, residual_ref = refs[3:]
    store_block(out_ref, out.astype(out_ref.dtype), rows_left=left, width=columns_left)
    # every block of columns writes the same
    store_vector(residual_ref, residual, left=left)

  def tile(program: Any) -> tuple[Any, Any, Any, Any]:
    return grid.tile(program, column_blocks)

  def all_parts(program: Any) -> tuple[Any, Any, Any, Any]:
    batch, head, row_block, _ = tile(program)
    return batch, head, 0, row_block

  vectors = pl.BlockSpec((None, None, chunks * chunk, rows), all_parts)
  matrices = pl.BlockSpec(
    (None, None, chunks * chunk, rows, columns),
    lambda program: (*all_parts(program), tile(program)[3]),
  )
  if not split.interpreted:
    how = {**how, "compiler_params": compiler_params(num_warps=_MERGE_WARPS, num_stages=1)}
  out, residual = pl.pallas_call(
    kernel_body(merge, interpret=split.interpreted, like=operands.query),
    out_shape=_results(grid, operands.query),
    grid=(grid.programs(column_blocks),),
    in_specs=[vectors, vectors, matrices],
    out_specs=(
      pl.BlockSpec((None, None, rows, columns), tile),
      pl.BlockSpec((None, None, rows), lambda program: tile(program)[:3]),
    ),
    name="decode_portable_merge",
    **how,
  )(*states)
  return out, residual


def _results(grid: _Grid, query: jax.Array) -> tuple[Any, Any]:
  sizes = grid.sizes
  lead = (sizes.batch, sizes.kv_heads, grid.rows)
  return (
    sharding.out_struct((*lead, sizes.value_dim), query.dtype, query),
    sharding.out_struct(lead, jnp.float32, query),
  )


def _result_specs(grid: _Grid) -> tuple[pl.BlockSpec, pl.BlockSpec]:
  def index(program: Any) -> tuple[Any, Any, Any]:
    return grid.tile(program, 1)[:3]

  width = padded_dim(grid.sizes.value_dim)
  return (
    pl.BlockSpec((None, None, grid.block_rows, width), lambda program: (*index(program), 0)),
    pl.BlockSpec((None, None, grid.block_rows), index),
  )


def _store_finished(
  grid: _Grid, state: SoftmaxState, out_ref: Any, residual_ref: Any, left: Any
) -> None:
  """The results of a tile from the state of all its keys."""
  out, residual = softmax.finish(state)
  store_block(out_ref, out.astype(out_ref.dtype), rows_left=left, width=grid.sizes.value_dim)
  store_vector(residual_ref, residual, left=left)
