"""Decode attention's schedules: split keys, packed query heads, parts merged in a fixed order.

The kernels are those of `flash_attention` with one tile of rows; what differs is
how keys are dealt out. A number of parts that the config leaves open is the one
that the time model finds fastest.
"""

import dataclasses
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hw_profiles.attention import cluster_decode, cube_vector, multistage, warp_specialized
from hw_profiles.attention.calibration import (
  DECODE_CYCLES_PER_KEY,
  DECODE_CYCLES_PER_PART,
  EXCHANGE_CYCLES,
  EXPOSED_DECODE_CHAIN,
)
from hw_profiles.attention.config import DecodeConfig
from hw_profiles.attention.decode_passes import (
  decode_pass,
  merge_bytes,
  split_candidates,
)
from hw_profiles.attention.decode_problem import DecodeProblem
from hw_profiles.attention.passes import AttentionPass
from hw_profiles.attention.sm import SM_ASSUMPTIONS, PassKernel, sm_execution
from hw_profiles.attention.traffic import AttentionTraffic
from hw_profiles.capacity.buffers import Buffer, Shortfall
from hw_profiles.cost.arithmetic import missing_cube_rate, missing_rate
from hw_profiles.cost.device_time import DeviceTime
from hw_profiles.planner.op_model import Demand, Execution
from hw_profiles.profile import GpuProfile, NpuProfile

Device = GpuProfile | NpuProfile
SCORE_BYTES = 4


class DecodeSchedule:
  """`ScheduleModel` of decode attention over a schedule of `flash_attention`."""

  def __init__(  # noqa: D107  the class says it
    self,
    base: ModuleType,
    *,
    row_unit: Callable[[Any], int],
    on_chip: tuple[str, ...],
    assumptions: tuple[str, ...],
    step_cycles_per_key: float = 0.0,
    exposed_chain: float = 0.0,
    merge_cycles_per_part: float = 0.0,
    plain_start: bool = False,
  ) -> None:
    self.NAME: str = base.NAME
    self._base = base
    self._row_unit = row_unit
    self._on_chip = on_chip
    self._assumptions = assumptions
    self._step_cycles_per_key = step_cycles_per_key
    self._exposed_chain = exposed_chain
    self._merge_cycles_per_part = merge_cycles_per_part
    self._plain_start = plain_start

  def _pass(
    self, problem: DecodeProblem, config: DecodeConfig, device: Device, num_splits: int
  ) -> AttentionPass:
    return decode_pass(problem, config, num_splits=num_splits, row_unit=self._row_unit(device))

  def unsupported(self, problem: DecodeProblem, device: Device) -> tuple[Shortfall, ...]:
    """Devices and dtypes that the base schedule does not do."""
    if isinstance(device, NpuProfile):
      return missing_cube_rate(problem.dtype, device)
    return missing_rate(problem.dtype, device)

  def shortfalls(
    self, problem: DecodeProblem, config: DecodeConfig, device: Device
  ) -> tuple[Shortfall, ...]:
    """Rules of the tile and of pages, then memories."""
    one = self._pass(problem, config, device, 1)
    found = list(_page_shortfalls(problem, config))
    if isinstance(device, GpuProfile):
      found += self._base.shape_shortfalls(one)
    return (*found, *self._base.capacity_shortfalls(device, one))

  def _buffers(self, device: Device, one: AttentionPass, splits: int) -> tuple[Buffer, ...]:
    del splits
    found: tuple[Buffer, ...] = self._base.pass_buffers(device, (one,))
    return found

  def _partial_bytes(self, problem: DecodeProblem, config: DecodeConfig, splits: int) -> int:
    """What the parts write to device memory and the merge reads back."""
    return merge_bytes(problem, config, num_splits=splits)

  def _split_candidates(
    self, problem: DecodeProblem, config: DecodeConfig, cores: int
  ) -> tuple[int, ...]:
    return split_candidates(problem, block_kv=config.block_kv, cores=cores)

  def demand(self, problem: DecodeProblem, config: DecodeConfig, device: Device) -> Demand:
    """What one program keeps, and how its parts run."""
    splits = self.num_splits(problem, config, device)
    one = self._pass(problem, config, device, splits)
    buffers = self._buffers(device, one, splits)
    chosen = "asked for" if config.num_splits is not None else "the model's choice"
    return Demand(
      buffers=buffers,
      traffic=_traffic(
        problem,
        one,
        splits,
        buffers,
        self._on_chip,
        partials=self._partial_bytes(problem, config, splits),
      ),
      tiles=one.visits.blocks,
      cores=device.sm_count if isinstance(device, GpuProfile) else device.aic_count,
      execution=lambda: self._execution(problem, config, device, splits),
      notes=(
        f"{splits} part(s) a sequence, {chosen}",
        f"{problem.rows} query row(s) of a key head are computed as {one.rows}",
      ),
      assumptions=self._assumptions,
    )

  def num_splits(self, problem: DecodeProblem, config: DecodeConfig, device: Device) -> int:
    """The config's number of parts, or the one that takes least time; of equals the fewest."""
    if config.num_splits is not None:
      return config.num_splits
    if self.unsupported(problem, device) or self.shortfalls(problem, config, device):
      return 1
    return self._fastest(problem, config, device)

  @functools.lru_cache(maxsize=1024)  # noqa: B019  the schedules live as long as the process
  def _fastest(self, problem: DecodeProblem, config: DecodeConfig, device: Device) -> int:
    cores = device.sm_count if isinstance(device, GpuProfile) else device.aic_count
    return min(
      self._split_candidates(problem, config, cores),
      key=lambda splits: (self._total_us(problem, config, device, splits), splits),
    )

  def _total_us(
    self, problem: DecodeProblem, config: DecodeConfig, device: Device, splits: int
  ) -> float:
    work = self._execution(problem, config, device, splits).work
    assert isinstance(work, DeviceTime)
    return work.total_us

  def _kernel(self, device: GpuProfile, one: AttentionPass, splits: int) -> PassKernel:
    del splits
    found: PassKernel = self._base.pass_kernel(device, one)
    return found

  def _execution(
    self, problem: DecodeProblem, config: DecodeConfig, device: Device, splits: int
  ) -> Execution:
    one = self._pass(problem, config, device, splits)
    moved = self._partial_bytes(problem, config, splits)
    merges = (moved,) if moved else ()
    if isinstance(device, NpuProfile):
      return cube_vector.npu_execution((one,), device, streamed_passes=merges)
    chain_us = config.block_kv * self._step_cycles_per_key / device.clock_hz * 1e6
    merged = splits if one.visits.blocks > problem.batch * problem.key_heads else 0
    merge_us = merged * self._merge_cycles_per_part / device.clock_hz * 1e6
    return sm_execution(
      (one,),
      device,
      kernel=lambda each: dataclasses.replace(
        self._kernel(device, each, splits), chain_us=chain_us, exposed_chain=self._exposed_chain
      ),
      streamed_passes=merges,
      serial_us=merge_us,
      plain_start=self._plain_start,
    )


def _page_shortfalls(problem: DecodeProblem, config: DecodeConfig) -> tuple[Shortfall, ...]:
  page = problem.page_size
  if page is None or config.block_kv % page == 0 or page % config.block_kv == 0:
    return ()
  statement = f"a step takes whole pages of {page} keys, or whole steps make up a page"
  return (Shortfall("shape", "tile shape", ("block_kv",), statement),)


def _traffic(
  problem: DecodeProblem,
  one: AttentionPass,
  splits: int,
  buffers: tuple[Buffer, ...],
  on_chip: tuple[str, ...],
  *,
  partials: int,
) -> AttentionTraffic:
  total = one.streamed_bytes + one.once_bytes + partials
  scores = problem.seq_q * problem.seq_kv * SCORE_BYTES
  sequences = problem.batch * problem.key_heads
  written = problem.batch * problem.seq_q * problem.heads * problem.output_dim
  return AttentionTraffic(
    working_set_bytes=sum(x.needed_bytes for x in buffers if x.space in on_chip),
    q_read_bytes=one.once_bytes - written * one.size_bytes,
    kv_read_bytes=one.streamed_bytes,
    o_write_bytes=written * one.size_bytes + partials,
    total_bytes=total,
    sweeps=sequences,
    state_updates=one.visits.total,
    intensity=problem.flops / total if total else 0.0,
    grid=(sequences, splits),
    required_bytes=problem.once_through_bytes,
    score_bytes=scores,
    unfused_intermediate_bytes=4 * problem.batch * problem.heads * scores,
  )


class ClusterSchedule(DecodeSchedule):
  """`ScheduleModel` of the Hopper kernel, whose parts merge inside a cluster."""

  def _pass(
    self, problem: DecodeProblem, config: DecodeConfig, device: Device, num_splits: int
  ) -> AttentionPass:
    one = super()._pass(problem, config, device, num_splits)
    return dataclasses.replace(one, result_dtype=problem.result_dtype)

  def unsupported(self, problem: DecodeProblem, device: Device) -> tuple[Shortfall, ...]:
    """Devices, dtypes, sizes and pages that the kernel does not do."""
    assert isinstance(device, GpuProfile)
    found = warp_specialized.unsupported_operands(
      device, problem.dtype, head_dim=problem.head_dim, value_dim=problem.output_dim
    )
    return found or cluster_decode.unsupported_problem(problem)

  def shortfalls(
    self, problem: DecodeProblem, config: DecodeConfig, device: Device
  ) -> tuple[Shortfall, ...]:
    """Rules of the kernel, then memories; parts that are left open may be the most."""
    assert isinstance(device, GpuProfile)
    parts = config.num_splits or cluster_decode.most_parts(problem.output_dim)
    one = self._pass(problem, config, device, 1)
    return cluster_decode.shortfalls(config, device, one, parts)

  def _buffers(self, device: Device, one: AttentionPass, splits: int) -> tuple[Buffer, ...]:
    assert isinstance(device, GpuProfile)
    return cluster_decode.pass_buffers(device, one, splits)

  def _partial_bytes(self, problem: DecodeProblem, config: DecodeConfig, splits: int) -> int:
    return 0

  def _split_candidates(
    self, problem: DecodeProblem, config: DecodeConfig, cores: int
  ) -> tuple[int, ...]:
    del config, cores
    return cluster_decode.parts_of(problem)

  def _kernel(self, device: GpuProfile, one: AttentionPass, splits: int) -> PassKernel:
    del device
    return cluster_decode.pass_kernel(one, splits)


_SECOND_KERNEL = "parts are merged by a second kernel, which finds them in L2"

WARP_SPECIALIZED = ClusterSchedule(
  warp_specialized,
  row_unit=lambda _: cluster_decode.ROWS,
  on_chip=("shared", "registers"),
  assumptions=(
    *SM_ASSUMPTIONS,
    f"what a block sends each other one of its cluster takes {EXCHANGE_CYCLES.value} cycles"
    f" ({EXCHANGE_CYCLES.confidence})",
  ),
  merge_cycles_per_part=EXCHANGE_CYCLES.value,
)
MULTISTAGE = DecodeSchedule(
  multistage,
  row_unit=lambda _: multistage.MIN_BLOCK,
  on_chip=("shared", "registers"),
  assumptions=(*SM_ASSUMPTIONS, _SECOND_KERNEL),
  step_cycles_per_key=DECODE_CYCLES_PER_KEY.value,
  exposed_chain=EXPOSED_DECODE_CHAIN.value,
  merge_cycles_per_part=DECODE_CYCLES_PER_PART.value,
  # one sequence of 8192 keys takes 10.7 us with cold L2 on an H200, of which DRAM is 7.9 and the
  # first block 1.3: no room for the 5 us of a Hopper matmul
  plain_start=True,
)
CUBE_VECTOR = DecodeSchedule(
  cube_vector,
  row_unit=lambda npu: npu.fractal_rows,
  on_chip=("L1", "L0A", "L0B", "L0C", "UB"),
  assumptions=(*cube_vector.ASSUMPTIONS, _SECOND_KERNEL),
)
