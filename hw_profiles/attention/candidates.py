"""The tiles of an attention worth comparing on a device."""

import itertools
from collections.abc import Iterator

from hw_profiles import dtypes
from hw_profiles.attention import compiled, warp_specialized
from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.planner.plan import Schedule
from hw_profiles.planner.ranking import candidates_that_fit
from hw_profiles.profile import GpuProfile, NpuProfile

# Rows and columns that tuned kernels of each schedule use. Of wgmma's columns those that are
# multiples of 64 let V lie in its widest swizzle: on an H200 blocks of 80, 96, 112, 144 and 160
# keys took 4 to 15 % longer than the model says beside 64 and 128. 48 fit a head size of 256.
_WGMMA_ROWS = (64, 128, 192)
_WGMMA_COLUMNS = (16, 32, 48, 64, 128, 192)
_MMA_ROWS = (16, 32, 64, 128)
_MMA_COLUMNS = (16, 32, 64, 128)
_CUBE_ROWS = (16, 32, 64, 128, 256)
_CUBE_COLUMNS = (128, 256, 512, 1024)
# a causal kernel as compiled keeps several blocks like V in UB
_COMPILED_COLUMNS = (16, 32, 64, *_CUBE_COLUMNS)
_Sizes = tuple[int, ...]
_GPU_STAGES = (1, 2, 3, 4)
_NPU_STAGES = (1, 2)
_WARPS = (4, 8)
# The time model has no issue slots of an SM, which make short blocks slow where there are rows
# for longer ones: 64 rows of 128 16-bit values, as many bytes of wider rows.
_SMALLEST_USEFUL_ROWS = 64
_SMALLEST_USEFUL_BYTES = 16384
_LARGEST_BACKWARD_COLUMNS = 128


def _smallest_useful(problem: AttentionProblem, device: GpuProfile | NpuProfile) -> int:
  """Rows below which a block is not worth comparing; 0 on Ascend, where pipes are all there is."""
  if isinstance(device, NpuProfile):
    return 0
  row_bytes = max(problem.head_dim, problem.output_dim) * dtypes.size_bytes(problem.dtype)
  fitting = _SMALLEST_USEFUL_BYTES // row_bytes
  if fitting < _SMALLEST_USEFUL_ROWS and problem.backward:
    # "dkv" keeps two gradients that wide in registers
    fitting //= 2
  power = 1 << max(fitting.bit_length() - 1, 0)
  return min(max(power, _MMA_ROWS[0]), _SMALLEST_USEFUL_ROWS)


def _useful(sizes: _Sizes, extent: int, smallest: int = 0) -> _Sizes:
  """Sizes from `smallest` to the first that covers `extent`; larger ones only add padding."""
  covering = min((size for size in sizes if size >= extent), default=sizes[-1])
  return tuple(size for size in sizes if min(smallest, covering) <= size <= covering)


def _sizes(
  device: GpuProfile | NpuProfile, schedule: str
) -> tuple[_Sizes, _Sizes, _Sizes, tuple[int | None, ...]]:
  """Rows, columns, stages and warps to combine."""
  if isinstance(device, NpuProfile):
    columns = _COMPILED_COLUMNS if schedule == compiled.NAME else _CUBE_COLUMNS
    return _CUBE_ROWS, columns, _NPU_STAGES, (None,)
  if schedule == warp_specialized.NAME:
    return _WGMMA_ROWS, _WGMMA_COLUMNS, _GPU_STAGES[1:], (None,)
  return _MMA_ROWS, _MMA_COLUMNS, _GPU_STAGES, _WARPS


def candidates(
  problem: AttentionProblem, device: GpuProfile | NpuProfile, schedule: str
) -> Iterator[AttentionConfig]:
  """Combinations of the sizes that one schedule's matrix unit takes whole, fit or not.

  Backward the forward blocks do not matter; its two kernels have programs of
  the same number of rows, with steps of their own.
  """
  rows, columns, stages, warps = _sizes(device, schedule)
  smallest = _smallest_useful(problem, device)
  extent = max(problem.seq_q, problem.seq_kv) if problem.backward else problem.seq_q
  rows = _useful(rows, extent, smallest)
  if problem.backward and schedule == warp_specialized.NAME:
    yield from _hopper_gradients(problem, stages)
    return
  if problem.backward:
    steps = tuple(x for x in sorted({16, 32, *columns}) if x <= _LARGEST_BACKWARD_COLUMNS)
    yield from _backward(rows, _useful(steps, extent, smallest), stages, warps)
    return
  columns = _useful(columns, problem.seq_kv, smallest // 2)
  for block_q, block_kv, num_stages, num_warps in itertools.product(rows, columns, stages, warps):
    yield AttentionConfig(block_q, block_kv, num_stages, num_warps=num_warps)


def _hopper_gradients(problem: AttentionProblem, stages: _Sizes) -> Iterator[AttentionConfig]:
  """Tiles of the one Hopper kernel, whose forward blocks do not matter."""
  # wide heads need two consumers, however few keys there are
  keys = _useful(_WGMMA_ROWS, max(problem.seq_kv, 2 * warp_specialized.WGMMA_ROWS))
  queries = tuple(x for x in _WGMMA_COLUMNS if x % warp_specialized.GRADIENT_COLUMNS == 0)
  queries = _useful(tuple(x for x in queries if x <= _LARGEST_BACKWARD_COLUMNS), problem.seq_q)
  for kept, walked, num_stages in itertools.product(keys, queries, stages):
    yield AttentionConfig(walked, kept, num_stages, block_kv_dkv=kept, block_q_dkv=walked)


def _backward(
  rows: _Sizes, steps: _Sizes, stages: _Sizes, warps: tuple[int | None, ...]
) -> Iterator[AttentionConfig]:
  """Pairs of tiles: rows of a program, which both kernels share, and steps of each."""
  for kept, walked, walked_dq, num_stages, num_warps in itertools.product(
    rows, steps, steps, stages, warps
  ):
    yield AttentionConfig(
      block_q=kept,
      block_kv=walked,
      num_stages=num_stages,
      num_warps=num_warps,
      block_kv_dkv=kept,
      block_q_dkv=walked,
      block_q_dq=kept,
      block_kv_dq=walked_dq,
    )


def attention_candidates(
  profile: str | GpuProfile | NpuProfile,
  problem: AttentionProblem,
  *,
  schedule: Schedule = "auto",
) -> tuple[AttentionConfig, ...]:
  """The tiles worth comparing on a device, all of which fit it.

  Args:
    profile: A profile or its name.
    problem: What is computed.
    schedule: As for `plan`.

  Raises:
    ValueError: `problem` is no AttentionProblem, or there is no such profile or
      schedule.
  """
  if not isinstance(problem, AttentionProblem):
    raise ValueError(f"problem={problem!r}: expected an AttentionProblem")
  return candidates_that_fit(problem, profile, schedule=schedule)
