"""Decode attention's schedules: split keys, packed query heads, parts merged in order.

The kernels are those of `flash_attention` with one tile of rows; what differs is
how keys are dealt out. A number of parts that the config leaves open is the one
that the time model finds fastest.
"""

import dataclasses
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hw_profiles.attention import cube_vector, multistage, warp_specialized
from hw_profiles.attention.calibration import DECODE_CYCLES_PER_KEY, DECODE_CYCLES_PER_PART
from hw_profiles.attention.config import DecodeConfig
from hw_profiles.attention.decode_passes import (
  decode_pass,
  merge_bytes,
  split_candidates,
)
from hw_profiles.attention.decode_problem import DecodeProblem
from hw_profiles.attention.passes import AttentionPass
from hw_profiles.attention.sm import SM_ASSUMPTIONS, sm_execution
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
    merge_cycles_per_part: float = 0.0,
  ) -> None:
    self.NAME: str = base.NAME
    self._base = base
    self._row_unit = row_unit
    self._on_chip = on_chip
    self._assumptions = assumptions
    self._step_cycles_per_key = step_cycles_per_key
    self._merge_cycles_per_part = merge_cycles_per_part

  def _pass(
    self, problem: DecodeProblem, config: DecodeConfig, device: Device, num_splits: int
  ) -> AttentionPass:
    return decode_pass(problem, config, num_splits=num_splits, row_unit=self._row_unit(device))

  def unsupported(self, problem: DecodeProblem, device: Device) -> tuple[Shortfall, ...]:
    """Devices and dtypes that the base schedule does not do."""
    if isinstance(device, NpuProfile):
      return missing_cube_rate(problem.dtype, device)
    if self._base is warp_specialized:
      return warp_specialized.unsupported_operands(
        device, problem.dtype, head_dim=problem.head_dim, value_dim=problem.output_dim
      )
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

  def demand(self, problem: DecodeProblem, config: DecodeConfig, device: Device) -> Demand:
    """What one program keeps, and how its parts run."""
    splits = self.num_splits(problem, config, device)
    one = self._pass(problem, config, device, splits)
    buffers: tuple[Buffer, ...] = self._base.pass_buffers(device, (one,))
    chosen = "asked for" if config.num_splits is not None else "the model's choice"
    return Demand(
      buffers=buffers,
      traffic=_traffic(problem, config, one, splits, buffers, self._on_chip),
      tiles=one.visits.blocks,
      cores=device.sm_count if isinstance(device, GpuProfile) else device.aic_count,
      execution=lambda: self._execution(problem, config, device, splits),
      notes=(
        f"{splits} part(s) a sequence, {chosen}",
        f"{problem.rows} query row(s) of a key head are computed as {one.rows}",
      ),
      assumptions=(
        *self._assumptions,
        "parts are merged in order by a second kernel, which finds them in L2",
      ),
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
      split_candidates(problem, block_kv=config.block_kv, cores=cores),
      key=lambda splits: (self._total_us(problem, config, device, splits), splits),
    )

  def _total_us(
    self, problem: DecodeProblem, config: DecodeConfig, device: Device, splits: int
  ) -> float:
    work = self._execution(problem, config, device, splits).work
    assert isinstance(work, DeviceTime)
    return work.total_us

  def _execution(
    self, problem: DecodeProblem, config: DecodeConfig, device: Device, splits: int
  ) -> Execution:
    one = self._pass(problem, config, device, splits)
    moved = merge_bytes(problem, config, num_splits=splits)
    merges = (moved,) if moved else ()
    if isinstance(device, NpuProfile):
      return cube_vector.npu_execution((one,), device, streamed_passes=merges)
    chain_us = config.block_kv * self._step_cycles_per_key / device.clock_hz * 1e6
    merge_us = splits * self._merge_cycles_per_part / device.clock_hz * 1e6 if moved else 0.0
    return sm_execution(
      (one,),
      device,
      kernel=lambda each: dataclasses.replace(
        self._base.pass_kernel(device, each), chain_us=chain_us
      ),
      streamed_passes=merges,
      serial_us=merge_us,
    )


def _page_shortfalls(problem: DecodeProblem, config: DecodeConfig) -> tuple[Shortfall, ...]:
  page = problem.page_size
  if page is None or config.block_kv % page == 0 or page % config.block_kv == 0:
    return ()
  statement = f"a step takes whole pages of {page} keys, or whole steps make up a page"
  return (Shortfall("shape", "tile shape", ("block_kv",), statement),)


def _traffic(
  problem: DecodeProblem,
  config: DecodeConfig,
  one: AttentionPass,
  splits: int,
  buffers: tuple[Buffer, ...],
  on_chip: tuple[str, ...],
) -> AttentionTraffic:
  partials = merge_bytes(problem, config, num_splits=splits)
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


WARP_SPECIALIZED = DecodeSchedule(
  warp_specialized,
  row_unit=lambda _: warp_specialized.WGMMA_ROWS,
  on_chip=("shared", "registers"),
  assumptions=SM_ASSUMPTIONS,
)
MULTISTAGE = DecodeSchedule(
  multistage,
  row_unit=lambda _: multistage.MIN_BLOCK,
  on_chip=("shared", "registers"),
  assumptions=SM_ASSUMPTIONS,
  step_cycles_per_key=DECODE_CYCLES_PER_KEY.value,
  merge_cycles_per_part=DECODE_CYCLES_PER_PART.value,
)
CUBE_VECTOR = DecodeSchedule(
  cube_vector,
  row_unit=lambda npu: npu.fractal_rows,
  on_chip=("L1", "L0A", "L0B", "L0C", "UB"),
  assumptions=cube_vector.ASSUMPTIONS,
)
