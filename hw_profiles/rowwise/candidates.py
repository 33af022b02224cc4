"""The tiles of a row-wise op worth comparing on a device."""

import dataclasses
from collections.abc import Iterator

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.capacity import compiled
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.rowwise.block_threads import threads
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import (
  RmsNormProblem,
  RowProblem,
  SwigluQuantizeProblem,
  TransposeProblem,
)
from hw_profiles.rowwise.streams import element_bytes, row_op
from hw_profiles.rowwise.traffic import once_through_bytes
from hw_profiles.rowwise.transpose_shared import swizzle_divides

# Two warps with two 16-byte loads a thread: 1024 16-bit elements. Beyond 16384
# nothing is gained, bytes in flight suffice long before.
_GPU_ELEMENTS = (1024, 16384)
# Fewer blocks of that for each SM leave a wait that smaller ones with a shorter
# walk of each thread share out: 8 x 5000 of swiglu takes 0.96 us in blocks of 512
# with 4 warps and 1.28 in the larger ones, 64 x 5000 1.44 and 1.50; 64 x 12288,
# 5.8 blocks for each SM, 2.05 and 1.89. Of more than one for each SM, all of which it
# holds at once, 8 warps share out more of a wait (64 x 5000: 1.38 us, 1.47 with 4; 8 x
# 5000: 0.96, 0.94 with 4).
_FEW_BLOCKS = 4
_FEW_ELEMENTS = 512
_FEW_WARPS = (4, 8)
# Blocks of an element a thread, where there is no SM with two: swiglu of 1 x 111
# takes 0.86 us, 0.93 with four elements a thread.
_FEWEST_ELEMENTS = 256
_FEWEST_WARPS = 8
# Rows that are reduced side by side share their wait, not more: four of 4096 are
# slower than two on an H200 (4.5 and 4.1 us of 1024).
_GPU_REDUCED = (1024, 8192)
# Two rows of rms_norm without more that are in one piece of this width, where each SM has
# several blocks of them and L2 holds operand and result: 1024 x 4096 takes 4.12 us so, 4.77
# by rows, which the model cannot tell apart; from memory neither is faster (7239 x 4096:
# 28.60 and 28.58). Other widths were not measured.
_PAIRED_COLUMNS = 4096
_PAIRED_FROM = 4
_PAIRED_BYTES = 2
# A row of rms_norm with a residual, of this width in 16 bits, where L2 does not hold operands and
# results: 65536 x 4096 takes 523 us with 16 warps, 532 with the 8 of the default and 535 by
# two rows with 16, 7239 x 4096 57.7, 59.1 and 58.1. Other widths were not measured.
_SUMMED_COLUMNS = 4096
_SUMMED_BYTES = 4
_SUMMED_WARPS = 16
# Short rows: 8 elements a thread of two warps, one 16-byte load. Quantised swiglu of
# 7239 x 111 takes 3.7 us in blocks of 4 rows, 5.5 of 8 and 8.3 of 16.
_SHORT = 128
_SHORT_ELEMENTS = 512
_SHORT_WARPS = 2
# Of rms_norm without more a row a block where no SM has a second one: 64 x 111 takes 1.09 us
# by one warp, 1.10 by four, 1.18 in blocks of 4 rows by two; 8 x 111 1.06, 1.04 and 1.19.
_ALONE_WARPS = 1
# The longest row that one block can keep of two operands and float32 values: 64
# elements for each of 256 threads. It is read once; longer ones are walked twice.
_GPU_MOST_KEPT = 16384
# Rows beyond this, and no power of two, are kept in pieces of a 16-byte load a
# thread, so that the last piece alone is masked.
_PIECES_FROM = 4096
_PIECE_PER_WARP = 256
# 32 would have 64 registers a thread, too few for 16 elements of two float32 operands.
_PIECE_WARPS = (4, 8, 16)
# The fewer warps, the fewer lanes are masked and the more rows an SM has side by
# side, as far as a thread has registers: 88 elements of one 16-bit operand (11008
# columns of rms_norm: 82.9 us of 7239 rows with 4 warps, 84.9 with 8), 44 of two
# (quantised swiglu, 5000 columns: 54.0 us with 40 elements, 60.5 with 24; 12288
# columns: 131.8 with 48, 123.5 with 24).
_LOADED_PER_THREAD = 176
# Of quantised swiglu in 16 bits pieces of half such a load a thread, where only they leave 8 warps
# within that room: 7239 x 11008 takes 117.1 us in 11 pieces of 1024, 44 elements a thread, by 8
# warps, 122.1 in 3 of 4096 by 16 and 126.4 in 6 of 2048 by 8, 48 elements a thread.
_HALVED_WARPS = 8
_HALVED_BYTES = 4
# Of more than two 16-bit operands 64 elements would leave a thread no registers.
_WIDE_FROM = 8192
_WIDE_BYTES = 4
_WIDE_WARPS = 16
# Where each row has SMs for several programs: each reads it whole and writes 8 elements a
# thread of 8 warps (rms_norm, 8 x 12288: 1.47 us in 6 such parts, 2.02 by one program a
# row, 1.57 in 12 parts; 64 x 12288, three programs an SM: 2.69, and 2.18 by one), of
# shorter rows 4 (8 x 5000: 1.25 us, 1.31 in parts of 2048, 1.50 by one; 8 x 4096: 1.18,
# 1.22 and 1.31). Shorter and longer ones were not measured.
_SEVERAL_WRITERS = (4096, 12288)
_WRITTEN_COLUMNS = 2048
_SHORTER_WRITTEN_COLUMNS = 1024
_SHORTER_ROW = 8192
_WRITING_WARPS = 8
_GPU_WALK_COLUMNS = (1024, 2048, 4096)
_GPU_WALK_STAGES = (2, 3, 4)
# A copy into UB wants 16 KiB; UB holds several of at most 32768 elements.
_NPU_ELEMENTS = (2048, 32768)
_NPU_WALK_COLUMNS = (2048, 4096, 8192)
# A compiled walk keeps up to 48 B an element, of codes 416 B a column beside: 512 columns of
# any height overfill a 910's UB.
_COMPILED_WALK_COLUMNS = (128, 256, 512, 1024, *_NPU_WALK_COLUMNS)
_NPU_STAGES = (1, 2)
# A segment of fewer columns is shorter than what one load of a block covers.
_LEAST_SEGMENT = 512
_MOST_SPLITS = 128
# On SMs segments are kept, where that takes no more of them than this, and no more are offered than
# use the cores: every further one is merged by each program that stores. H200, rms_norm, us by
# segments: 1 x 65536 in 8 2.82, 16 2.78, 32 3.05; 1 x 32768 in 8 2.40, 16 2.50, 8 x 131072 in 16
# 3.68, 32 3.81; 64 x 65536 in 4 6.18, 8 6.82, 16 8.52; 64 x 2^18 in 16 31.1, in 8 that are walked
# 60.7.
_USEFUL_SPLITS = (8, 16)
_MORE_USEFUL_FROM = 131072
# Of one row that they divide, so that each begins at 16 bytes, as many as have so few columns, and
# more than `_MOST_SPLITS`: 1 x 131072 in 16 2.98, 32 2.78; 1 x 2^18 in 16 3.74, 64 2.96; 1 x 2^19
# in 32 4.03, 128 3.62; 1 x 2^20 in 64 4.34, 256 3.70; 1 x 2^21 in 128 5.51, 256 4.91, 512 5.13; 1 x
# 2^22 in 256 7.26, 512 7.65, in 128 that are walked 11.8; 1 x 2^24 in 1024 38.1, in 128 that are
# walked 62.3. But 1 x 3,000,000 in 256 10.9, in 128 that are walked 9.5.
_ROW_SPLIT_COLUMNS = 4096
_MOST_ROW_SPLITS = 1024
_SPLIT_ALIGNMENT = 8
_SPLIT_BYTES = 2
# Codes of segments by the default number of warps: 1 x 2^17 in 32 2.69 us, by 16 warps 2.78, 8 x
# 2^20 in 64 13.9, by 32 17.3. Of fewer segments it was not measured.
_FEW_SPLITS = 16
_BUSY_PROGRAMS = 2
# Codes of so few rows that each has an SM of its own: the arithmetic of a row is
# then all there is, and more warps do it sooner (1 x 4096: 1.50 us with 16, 1.73
# with 8), up to their exchange: quantised swiglu of 1 x 11008 takes 2.94 us with 24
# elements a thread in pieces, 3.20 with 48, 3.65 in one masked block of 32 warps.
_QUICK_ELEMENTS_PER_WARP = 256
_MOST_QUICK_WARPS = 32
_QUICK_ELEMENTS_PER_THREAD = 24
# Runs of 32 16-bit elements are 64 B: DRAM has bursts of that.
_GPU_TRANSPOSE_BLOCKS = ((32, 32), (64, 64), (128, 64), (128, 128))
# Where blocks of 32 x 32 leave SMs idle: the smaller of these of which each SM has
# one at most, by eight warps (64 x 111: 0.90 us, 1.03 in blocks of 32 x 32 with two;
# 1024 x 111: 1.09 in 64 x 16, 1.28 in 16 x 16, which are 448, and 1.15 in 32 x 32).
_FEW_TRANSPOSE_BLOCKS = ((16, 16), (64, 16))
_FEW_TRANSPOSE_WARPS = 8
# Of 16-bit elements in more rows than half of these blocks have: what stands in for 64 x 16
# (1024 x 111: 1.02 us in 64 x 32, 1.09 in 64 x 16).
_FEW_TALL_BLOCK = (64, 32)
# Of rows that such a block holds all of, the narrowest of which each SM has one at most, too:
# 64 x 4096 takes 1.12 us in 64 x 32, 1.22 in 32 x 32; 64 x 5000 1.16 in 64 x 64, 1.25 in 64 x 32,
# which are 157, and 1.31 in 32 x 32; 64 x 11008 1.46 in 64 x 128 and 1.53 with 4 warps, 1.44 in
# 32 x 64 with 4; 64 x 12288 1.50, 1.56 and 1.54.
_ONE_HIGH_BLOCKS = (_FEW_TALL_BLOCK, (64, 64), (64, 128))
# What that was measured with.
_TRANSPOSED_BYTES = 2
# Of no more rows than these, where that leaves SMs several blocks: 8 x 12288 takes 0.96 us so,
# 1.01 in 8 x 64, 1.18 in 32 x 32, three quarters of which are no rows; 8 x 4096 0.93 in each.
_LOW_TRANSPOSE_BLOCK = (8, 128)
_LOW_TRANSPOSE_WARPS = 4
# In the place of 128 x 64 where matrix and transpose fit in L2: 1024 x 5000 takes 5.0 us
# so, 5.4 in 128 x 64 by eight warps; 1024 x 11008 12.1 and 13.0; 1024 x 4096 3.8 either way.
_CACHED_TRANSPOSE_BLOCK = (64, 128)
_CACHED_TRANSPOSE_WARPS = 4
# Blocks for each SM from which on the largest is offered: fewer leave more idle
# than their longer runs gain (7239 x 4096 in 128 x 128: 49 us, in 128 x 64: 38;
# 65536 x 4096: 277 and 293).
_LARGEST_FROM = 64
# Long rows of 16-bit elements, from memory: more warps in blocks of 128 x 64 (us with 16, 8 and 4
# warps, 7239 x 11008: 121.7, 127.4 and 125.6; 7239 x 12288: 138.2, 144.0 and 141.1), which shorter
# ones lose by (7239 x 4096: 39.8, 37.6 and 36.4; 7239 x 5000: 54.8, 53.5 and 55.1). None between
# 5000 and 11008 was measured.
_LONG_TRANSPOSE_BLOCK = (128, 64)
_LONG_TRANSPOSE_FROM = 8192
_LONG_TRANSPOSE_WARPS = 16
_NPU_TRANSPOSE_SIDES = (64, 128, 256)


def _covering(extent: int) -> int:
  """The smallest power of two of at least `extent`."""
  return 1 << (max(extent, 1) - 1).bit_length()


def _powers(smallest: int, largest: int) -> Iterator[int]:
  """Powers of two from `smallest` on, up to `largest`."""
  value = smallest
  while value <= largest:
    yield value
    value *= 2


def _rows(problem: RowProblem, columns: int, elements: tuple[int, int]) -> Iterator[int]:
  """Heights that make blocks of a useful size; at least one, even where none does."""
  least, most = elements
  # UB holds rows at multiples of 32 B, and a warp has 32 lanes
  columns = round_up(columns, 32)
  covering = _covering(problem.rows)
  smallest = min(_covering(ceil_div(least, columns)), covering)
  return _powers(smallest, max(min(most // columns, covering), smallest))


def _splits(problem: RowProblem, cores: int, *, on_npu: bool) -> tuple[int, ...]:
  """Numbers of segments: what the caller fixed, else as many as cores could share."""
  if isinstance(problem, RmsNormProblem) and problem.num_splits is not None:
    return (problem.num_splits,)
  most = min(problem.columns // _LEAST_SEGMENT, _MOST_SPLITS, _covering(cores))
  # rows that fill the cores by themselves gain nothing from a split
  if problem.rows >= 2 * cores:
    most = 1
  if on_npu:
    return (1, *_powers(2, most))
  useful = _USEFUL_SPLITS[problem.columns >= _MORE_USEFUL_FROM]
  busy = max(_BUSY_PROGRAMS * cores // max(problem.rows, 1), 1)
  # a power of two of no more
  busy = 1 << (busy.bit_length() - 1)
  alone = _row_splits(problem, busy)
  if alone is not None:
    return (1, alone)
  kept = min(_covering(ceil_div(problem.columns, _GPU_MOST_KEPT)), most)
  return (1, *_powers(max(kept, 2), min(max(min(useful, busy), kept), most)))


def _row_splits(problem: RowProblem, busy: int) -> int | None:
  """Segments of a long row that is alone, as `_ROW_SPLIT_COLUMNS` says; None: it is none."""
  if problem.rows != 1 or problem.columns < _MORE_USEFUL_FROM or not _is_measured_split(problem):
    return None
  useful = min(_covering(problem.columns // _ROW_SPLIT_COLUMNS), busy)
  found = max(useful, _covering(ceil_div(problem.columns, _GPU_MOST_KEPT)))
  if found > _MOST_ROW_SPLITS or problem.columns % (_SPLIT_ALIGNMENT * found):
    return None
  return found


def _is_measured_split(problem: RowProblem) -> bool:
  """Whether many segments were measured: of 16-bit rows, normalised or encoded as they are."""
  return (
    not isinstance(problem, SwigluQuantizeProblem)
    and dtypes.size_bytes(problem.dtype) == _SPLIT_BYTES
  )


def row_candidates(
  problem: RowProblem, device: GpuProfile | NpuProfile, schedule: str
) -> Iterator[RowConfig]:
  """Blocks for each form that the op has, fit or not."""
  on_npu = isinstance(device, NpuProfile)
  elements = _NPU_ELEMENTS if on_npu else _GPU_ELEMENTS
  if not row_op(problem).statistics:
    if isinstance(device, GpuProfile) and (
      problem.elements < _FEW_BLOCKS * elements[0] * device.sm_count
    ):
      block, warps = _FEW_ELEMENTS, _FEW_WARPS[problem.elements > _FEW_ELEMENTS * device.sm_count]
      if problem.elements <= _FEWEST_ELEMENTS * device.sm_count:
        block, warps = _FEWEST_ELEMENTS, _FEWEST_WARPS
      columns = min(_covering(problem.columns), block)
      yield RowConfig(block // columns, columns, 1, num_warps=warps)
      return
    stages = _NPU_STAGES if on_npu else (1,)
    widest = _covering(problem.columns)
    for columns in _powers(min(128, widest), min(widest, elements[1])):
      for rows in _rows(problem, columns, elements):
        for num_stages in stages:
          yield RowConfig(rows, columns, num_stages)
    return
  cores = device.aiv_count if isinstance(device, NpuProfile) else device.sm_count
  is_compiled = schedule == compiled.NAME
  # segments are several kernels, which are not compiled as one
  for splits in (1,) if is_compiled else _splits(problem, cores, on_npu=on_npu):
    segment = max(ceil_div(problem.columns, splits), 1)
    # None where the problem says it, so that the config reads as people write it
    written = None if splits == 1 else splits
    if isinstance(device, NpuProfile):
      # compiled blocks are 2^i wide
      whole = _covering(segment) if is_compiled else segment
      walks = _COMPILED_WALK_COLUMNS if is_compiled else _NPU_WALK_COLUMNS
      yield from _npu_reductions(problem, whole, written, walks)
    else:
      yield from _gpu_reductions(problem, segment, written, device)


def _gpu_reductions(
  problem: RowProblem, segment: int, num_splits: int | None, gpu: GpuProfile
) -> Iterator[RowConfig]:
  whole = _covering(segment)
  cores = gpu.sm_count
  alone = problem.rows <= cores
  least, most = _SEVERAL_WRITERS
  if num_splits is None and _is_plain_norm(problem) and least <= segment <= most:
    part = _SHORTER_WRITTEN_COLUMNS if segment <= _SHORTER_ROW else _WRITTEN_COLUMNS
    writers = ceil_div(segment, part)
    if problem.rows * writers <= cores:
      yield RowConfig(1, writers * part, 1, num_warps=_WRITING_WARPS, num_writers=writers)
  if num_splits is None and _PIECES_FROM < segment < whole <= _GPU_MOST_KEPT:
    yield _in_pieces(problem, alone=alone)
    return
  if whole <= _SHORT and alone and num_splits is None and _is_plain_norm(problem):
    yield RowConfig(1, whole, 1, num_warps=_ALONE_WARPS)
    return
  if whole <= _SHORT:
    # a warp has 32 lanes
    rows = min(_SHORT_ELEMENTS // max(whole, 32), _covering(problem.rows))
    yield RowConfig(rows, whole, 1, num_splits=num_splits, num_warps=_SHORT_WARPS)
    return
  if segment == _PAIRED_COLUMNS and num_splits is None and _is_paired(problem, gpu):
    yield RowConfig(2, segment, 1)
    return
  if segment == _SUMMED_COLUMNS and num_splits is None and _is_summed_from_memory(problem, gpu):
    yield RowConfig(1, segment, 1, num_warps=_SUMMED_WARPS)
    return
  if whole <= _GPU_MOST_KEPT:
    wide = whole > _WIDE_FROM and element_bytes(row_op(problem).inputs) > _WIDE_BYTES
    for rows in _rows(problem, whole, _GPU_REDUCED):
      warps = _WIDE_WARPS if wide else None
      many = (num_splits or 1) > _FEW_SPLITS and _is_measured_split(problem)
      if problem.is_quantized and alone and not many:
        warps = max(1, min(rows * whole // _QUICK_ELEMENTS_PER_WARP, _MOST_QUICK_WARPS))
      yield RowConfig(rows, whole, 1, num_splits=num_splits, num_warps=warps)
    return
  for columns in _GPU_WALK_COLUMNS:
    for num_stages in _GPU_WALK_STAGES:
      yield RowConfig(1, columns, num_stages, num_splits=num_splits)


def _is_plain_norm(problem: RowProblem) -> bool:
  """Whether all there is to do for a row is a sum of squares, and weights to apply.

  A residual has to be read by every writer, too, and codes wait for a second
  reduction of the whole row: neither was measured.
  """
  return isinstance(problem, RmsNormProblem) and not (problem.residual or problem.is_quantized)


def _is_paired(problem: RowProblem, gpu: GpuProfile) -> bool:
  """Whether two rows a block are faster than one: see `_PAIRED_FROM`."""
  return (
    _is_plain_norm(problem)
    and element_bytes(row_op(problem).inputs) == _PAIRED_BYTES
    and once_through_bytes(problem) <= gpu.l2_bytes
    and problem.rows >= _PAIRED_FROM * gpu.sm_count
  )


def _is_summed_from_memory(problem: RowProblem, gpu: GpuProfile) -> bool:
  """Whether rows of rms_norm take more warps for a residual: see `_SUMMED_COLUMNS`."""
  return (
    isinstance(problem, RmsNormProblem)
    and problem.residual
    and not problem.is_quantized
    and element_bytes(row_op(problem).inputs) == _SUMMED_BYTES
    and once_through_bytes(problem) > gpu.l2_bytes
  )


def _in_pieces(problem: RowProblem, *, alone: bool) -> RowConfig:
  """A kept row in equal pieces, by the fewest warps whose threads have room for it."""
  most = _LOADED_PER_THREAD // element_bytes(row_op(problem).inputs)
  if alone:
    most = min(most, _QUICK_ELEMENTS_PER_THREAD)
  tiles = [
    RowConfig(1, round_up(problem.columns, _PIECE_PER_WARP * warps), 1, num_warps=warps)
    for warps in _PIECE_WARPS
  ]
  if isinstance(problem, SwigluQuantizeProblem) and not alone:
    tiles[2:2] = _in_half_pieces(problem)
  fits = (one for one in tiles if one.block_cols <= most * threads(one))
  return next(fits, tiles[-1])


def _in_half_pieces(problem: SwigluQuantizeProblem) -> Iterator[RowConfig]:
  """What `_HALVED_WARPS` says, for where whole pieces of as many warps are too wide."""
  if element_bytes(row_op(problem).inputs) == _HALVED_BYTES:
    columns = round_up(problem.columns, _PIECE_PER_WARP * _HALVED_WARPS // 2)
    yield RowConfig(1, columns, 1, num_warps=_HALVED_WARPS)


def _npu_reductions(
  problem: RowProblem, segment: int, num_splits: int | None, walks: tuple[int, ...]
) -> Iterator[RowConfig]:
  for num_stages in _NPU_STAGES:
    for rows in _rows(problem, segment, _NPU_ELEMENTS):
      yield RowConfig(rows, segment, num_stages, num_splits=num_splits)
    for columns in walks:
      if columns < segment:
        for rows in _rows(problem, columns, _NPU_ELEMENTS):
          yield RowConfig(rows, columns, num_stages, num_splits=num_splits)


def transpose_candidates(
  problem: TransposeProblem, device: GpuProfile | NpuProfile
) -> Iterator[RowConfig]:
  """Blocks as large as leave every core several, padded, and swizzled where that works."""
  if isinstance(device, NpuProfile):
    for rows in _NPU_TRANSPOSE_SIDES:
      for columns in _NPU_TRANSPOSE_SIDES:
        if rows <= 2 * columns and columns <= 2 * rows:
          for num_stages in _NPU_STAGES:
            yield RowConfig(rows, columns, num_stages)
    return

  def count(rows: int, columns: int) -> int:
    return problem.batch * ceil_div(problem.rows, rows) * ceil_div(problem.columns, columns)

  size = dtypes.size_bytes(problem.dtype)
  few = count(*_GPU_TRANSPOSE_BLOCKS[0]) < device.sm_count
  for block in _one_each_blocks(problem, few=few):
    if count(*block) <= device.sm_count:
      yield RowConfig(*block, 1, num_warps=_FEW_TRANSPOSE_WARPS)
      return
  if problem.rows <= _LOW_TRANSPOSE_BLOCK[0]:
    yield RowConfig(*_LOW_TRANSPOSE_BLOCK, 1, num_warps=_LOW_TRANSPOSE_WARPS)
    return
  long = size == _TRANSPOSED_BYTES and problem.columns >= _LONG_TRANSPOSE_FROM
  for rows, columns in _GPU_TRANSPOSE_BLOCKS:
    blocks = count(rows, columns)
    wanted = device.sm_count
    if (rows, columns) == _GPU_TRANSPOSE_BLOCKS[-1]:
      wanted *= _LARGEST_FROM
    if blocks < wanted and (rows, columns) != _GPU_TRANSPOSE_BLOCKS[0]:
      continue
    padded = RowConfig(rows, columns, 1)
    if rows > columns and 2 * problem.elements * size <= device.l2_bytes:
      padded = RowConfig(*_CACHED_TRANSPOSE_BLOCK, 1, num_warps=_CACHED_TRANSPOSE_WARPS)
    elif long and (rows, columns) == _LONG_TRANSPOSE_BLOCK:
      padded = dataclasses.replace(padded, num_warps=_LONG_TRANSPOSE_WARPS)
    yield padded
    swizzled = dataclasses.replace(padded, layout="swizzled")
    if swizzle_divides(swizzled, size_bytes=size):
      yield swizzled


def _one_each_blocks(problem: TransposeProblem, *, few: bool) -> Iterator[tuple[int, int]]:
  """Blocks for SMs that have one each at most, the smallest first.

  Args:
    problem: The matrices.
    few: Whether blocks of 32 x 32 leave SMs idle.
  """
  smallest, taller = _FEW_TRANSPOSE_BLOCKS
  height = _FEW_TALL_BLOCK[0]
  tall = 2 * problem.rows > height and dtypes.size_bytes(problem.dtype) == _TRANSPOSED_BYTES
  if few:
    yield smallest
    yield _FEW_TALL_BLOCK if tall else taller
  if tall and problem.rows <= height:
    yield from _ONE_HIGH_BLOCKS
