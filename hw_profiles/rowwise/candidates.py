"""The tiles of a row-wise op worth comparing on a device."""

from collections.abc import Iterator

from hw_profiles import dtypes
from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.capacity import compiled
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.rowwise.config import RowConfig
from hw_profiles.rowwise.problem import RmsNormProblem, RowProblem, TransposeProblem
from hw_profiles.rowwise.streams import row_op
from hw_profiles.rowwise.transpose_shared import swizzle_divides

# Warps are allocated four at a time, of two 16-byte loads a thread: 2048 16-bit
# elements. Beyond 16384 nothing is gained, bytes in flight suffice long before.
_GPU_ELEMENTS = (2048, 16384)
# The longest row that one block can keep of two operands and float32 values: 16
# elements for each of 1024 threads, which have 64 registers. A row that is kept
# is read once; walking it twice is worth a look only where so much of an SM is
# taken by one row that its loads and its arithmetic take turns.
_GPU_MOST_KEPT = 16384
_GPU_LEAST_WALKED = 8192
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
# Runs of 32 16-bit elements are 64 B: DRAM has bursts of that.
_GPU_TRANSPOSE_SIDES = (32, 64, 128)
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


def _splits(problem: RowProblem, cores: int) -> tuple[int, ...]:
  """Numbers of segments: what the caller fixed, else as many as cores could share."""
  if isinstance(problem, RmsNormProblem) and problem.num_splits is not None:
    return (problem.num_splits,)
  most = min(problem.columns // _LEAST_SEGMENT, _MOST_SPLITS, _covering(cores))
  # rows that fill the cores by themselves gain nothing from a split
  if problem.rows >= 2 * cores:
    most = 1
  return (1, *_powers(2, most))


def row_candidates(
  problem: RowProblem, device: GpuProfile | NpuProfile, schedule: str
) -> Iterator[RowConfig]:
  """Blocks for each form that the op has, fit or not."""
  on_npu = isinstance(device, NpuProfile)
  elements = _NPU_ELEMENTS if on_npu else _GPU_ELEMENTS
  if not row_op(problem).statistics:
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
  for splits in (1,) if is_compiled else _splits(problem, cores):
    segment = max(ceil_div(problem.columns, splits), 1)
    # None where the problem says it, so that the config reads as people write it
    written = None if splits == 1 else splits
    if on_npu:
      # compiled blocks are 2^i wide
      whole = _covering(segment) if is_compiled else segment
      walks = _COMPILED_WALK_COLUMNS if is_compiled else _NPU_WALK_COLUMNS
      yield from _npu_reductions(problem, whole, written, walks)
    else:
      yield from _gpu_reductions(problem, segment, written)


def _gpu_reductions(
  problem: RowProblem, segment: int, num_splits: int | None
) -> Iterator[RowConfig]:
  whole = _covering(segment)
  if whole <= _GPU_MOST_KEPT:
    for rows in _rows(problem, whole, _GPU_ELEMENTS):
      yield RowConfig(rows, whole, 1, num_splits=num_splits)
      if whole > _GPU_LEAST_WALKED:
        yield RowConfig(rows, whole, 1, num_splits=num_splits, num_warps=32)
  if whole <= _GPU_LEAST_WALKED:
    return
  for columns in _GPU_WALK_COLUMNS:
    for num_stages in _GPU_WALK_STAGES:
      yield RowConfig(1, columns, num_stages, num_splits=num_splits)


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
  """Square blocks and those twice as long as high, padded, and swizzled where that works."""
  size = dtypes.size_bytes(problem.dtype)
  on_npu = isinstance(device, NpuProfile)
  sides = _NPU_TRANSPOSE_SIDES if on_npu else _GPU_TRANSPOSE_SIDES
  for rows in sides:
    for columns in sides:
      if not rows <= columns <= 2 * rows and not columns <= rows <= 2 * columns:
        continue
      if on_npu:
        for num_stages in _NPU_STAGES:
          yield RowConfig(rows, columns, num_stages)
        continue
      yield RowConfig(rows, columns, 1)
      swizzled = RowConfig(rows, columns, 1, layout="swizzled")
      if swizzle_divides(swizzled, size_bytes=size):
        yield swizzled
