"""Time of a tiled matmul on SMs, from the rates of one device."""

import dataclasses

from hw_profiles.arguments import ceil_div
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.profile import GpuProfile

# exp2 and a reciprocal for each silu
SPECIAL_FUNCTIONS_PER_SILU = 2


@dataclasses.dataclass(frozen=True)
class SmWork:
  """What the SMs have to do; a "step" is one block_k of one full tile.

  Attributes:
    tiles: Tiles of C.
    k_steps: Steps of a tile.
    flops_per_step: Padded operations.
    operand_bytes_per_step: Into shared memory.
    shared_bytes_per_step: In and out of shared memory.
    result_bytes_per_tile: C, in its dtype.
    outputs_per_tile: Elements of C.
    activation: Whether silu is applied.
    staged_epilogue: Whether C passes through shared memory.
    dram_bytes: Of the whole problem.
    resident_blocks: Blocks an SM holds.
    num_stages: Operand stages of a block.
    persistent: Whether a block goes on to the next tile, its copies running
      ahead through the epilogue.
  """

  tiles: int
  k_steps: int
  flops_per_step: int
  operand_bytes_per_step: int
  shared_bytes_per_step: int
  result_bytes_per_tile: int
  outputs_per_tile: int
  activation: bool
  staged_epilogue: bool
  dram_bytes: int
  resident_blocks: int
  num_stages: int
  persistent: bool


@dataclasses.dataclass(frozen=True)
class SmTime:
  """Estimated time and what it is made of.

  Attributes:
    times_us: Of "tensor_cores", "shared_memory", "l2", "dram", "latency",
      "epilogue" and "launch". The first five overlap; "latency" is the main
      loop's time if only the wait for each slot counted.
    total_us: launch + fill + the longest of the five + exposed epilogues.
    bound: The largest of `times_us`.
  """

  times_us: FrozenMap[str, float]
  total_us: float
  bound: str


def sm_time(gpu: GpuProfile, work: SmWork, *, peak_flops: float) -> SmTime:
  """Estimates the device time of `work`.

  The busiest SM runs r = ⌈tiles/SMs⌉ tiles of s steps. Each step takes at least

      tensor cores    flops / (peak/SMs · sustained fraction)
      L2              operand bytes / (L2 bandwidth/SMs)
      shared memory   shared bytes / (bytes a cycle · clock)
      latency         (DRAM latency + L2 + tensor cores) / slots

  where slots = stages x resident blocks: a slot is occupied from the request
  until the tensor cores are done with it (Little's law; one slot is the serial
  pipeline, cf. `pipeline`). DRAM serves all SMs together, at its sustained
  bandwidth or at bytes in flight / latency if that is less.

  Epilogues delay the next tile of a block; blocks that share an SM hide each
  other's but for the last.
  """
  rounds = ceil_div(work.tiles, gpu.sm_count)
  blocks = max(1, min(work.resident_blocks, rounds))
  slots = blocks * work.num_stages
  steps = rounds * work.k_steps

  tensor_rate = peak_flops / gpu.sm_count * gpu.sustained_tensor_fraction
  l2_rate = gpu.l2_bandwidth_bytes_per_s / gpu.sm_count
  shared_rate = gpu.shared_bytes_per_cycle_per_sm * gpu.clock_hz
  latency_us = gpu.dram_latency_ns / 1e3
  tensor_us = work.flops_per_step / tensor_rate * 1e6
  l2_us = work.operand_bytes_per_step / l2_rate * 1e6
  shared_us = work.shared_bytes_per_step / shared_rate * 1e6
  slot_us = latency_us + l2_us + tensor_us

  bytes_in_flight = (
    min(work.tiles, gpu.sm_count) * slots * work.operand_bytes_per_step if work.k_steps else 0
  )
  dram_rate = gpu.dram_bandwidth_bytes_per_s * gpu.sustained_dram_fraction
  if bytes_in_flight:
    dram_rate = min(dram_rate, bytes_in_flight / (gpu.dram_latency_ns / 1e9))

  epilogue_us = work.result_bytes_per_tile / l2_rate * 1e6
  if work.staged_epilogue:
    epilogue_us += 2 * work.result_bytes_per_tile / shared_rate * 1e6
  if work.activation:
    special_rate = gpu.special_functions_per_cycle_per_sm * gpu.clock_hz
    epilogue_us += work.outputs_per_tile * SPECIAL_FUNCTIONS_PER_SILU / special_rate * 1e6

  times_us = {
    "tensor_cores": steps * tensor_us,
    "shared_memory": steps * shared_us,
    "l2": steps * l2_us,
    "dram": work.dram_bytes / dram_rate * 1e6,
    "latency": steps * slot_us / slots,
    "epilogue": ceil_div(rounds, blocks) * epilogue_us,
    "launch": gpu.launch_overhead_us,
  }
  fill_us = latency_us + l2_us if steps else 0.0
  fills = 1 if work.persistent else ceil_div(rounds, blocks)
  overlapped_us = max(
    times_us[name] for name in ("tensor_cores", "shared_memory", "l2", "dram", "latency")
  )
  total_us = times_us["launch"] + fills * fill_us + overlapped_us + times_us["epilogue"]
  return SmTime(
    times_us=FrozenMap(times_us),
    total_us=total_us,
    bound=max(times_us, key=lambda name: times_us[name]),
  )
