"""Time of a tiled matmul on Ascend cube cores, pipe by pipe."""

import dataclasses

from hw_profiles.arguments import ceil_div
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.profile import NpuProfile

# silu(x) = x / (1 + exp(-x)): a negation, an addition, a multiplication and the
# conversion to the result dtype at the simple rate, exp and the division at exp's.
SIMPLE_OPERATIONS_PER_SILU = 4
EXP_OPERATIONS_PER_SILU = 2
FLOAT32_BYTES = 4


@dataclasses.dataclass(frozen=True)
class CubeWork:
  """What the cores have to do; a "step" is one block_k of one full tile.

  Attributes:
    tiles: Tiles of C.
    k_steps: Steps of a tile.
    macs_per_step: Padded multiply-accumulates.
    a_bytes_per_step: A into L1 and on to L0A.
    b_bytes_per_step: B into L1 and on to L0B.
    bias_bytes_per_tile: Into BT.
    outputs_per_tile: Elements of C, padded.
    result_bytes_per_tile: C, in its dtype.
    activation: Whether silu is applied, on the vector cores.
    hbm_bytes: Of the whole problem.
    num_stages: Operand tiles in L1.
    accumulators: Tiles of C in L0C.
    macs_per_cycle: Of one cube, for the dtype.
  """

  tiles: int
  k_steps: int
  macs_per_step: int
  a_bytes_per_step: int
  b_bytes_per_step: int
  bias_bytes_per_tile: int
  outputs_per_tile: int
  result_bytes_per_tile: int
  activation: bool
  hbm_bytes: int
  num_stages: int
  accumulators: int
  macs_per_cycle: int


@dataclasses.dataclass(frozen=True)
class CubeTime:
  """Estimated time and what it is made of.

  Attributes:
    times_us: Busy time on the busiest core of "mte2" (L2 to L1), "mte1" (L1 to
      L0), "cube", "fixpipe" (out of L0C), with an activation "vector_mte2" (GM
      to UB, 910B), "vector" and "mte3" (UB to GM); of all cores "hbm"; "launch".
    total_us: launch + fill + the tiles' rounds + the last tile's drain.
    bound: The largest of `times_us`.
  """

  times_us: FrozenMap[str, float]
  total_us: float
  bound: str


def cube_time(npu: NpuProfile, work: CubeWork) -> CubeTime:
  """Estimates the device time of `work`.

  Every pipe has its own queue, so pipes overlap across steps and tiles as far
  as their buffers allow:

      step   max(MTE2, MTE1, cube) with two stages in L1,
             MTE2 + max(MTE1, cube) with one
      tile   max(steps, FixPipe, vector pipes) with two accumulators in L0C,
             max(steps + FixPipe, vector pipes) with one

  MTE1 loads L0A and L0B one after the other. HBM serves all cores together.
  """
  rounds = ceil_div(work.tiles, npu.aic_count)
  vectors = npu.vector_cores_per_cube_core

  def cycles_us(amount: float, rate_per_cycle: float) -> float:
    return amount / (rate_per_cycle * npu.clock_hz) * 1e6

  mte2_us = cycles_us(work.a_bytes_per_step + work.b_bytes_per_step, npu.l2_to_core_bytes_per_cycle)
  mte1_us = cycles_us(work.a_bytes_per_step, npu.l1_to_l0a_bytes_per_cycle) + cycles_us(
    work.b_bytes_per_step, npu.l1_to_l0b_bytes_per_cycle
  )
  cube_us = cycles_us(work.macs_per_step, work.macs_per_cycle * npu.sustained_cube_fraction)
  bias_us = cycles_us(work.bias_bytes_per_tile, npu.bt_load_bytes_per_cycle)
  accumulator_bytes = work.outputs_per_tile * FLOAT32_BYTES
  vector_us: dict[str, float] = {}
  if not work.activation:
    fixpipe_us = cycles_us(work.result_bytes_per_tile, npu.l0c_to_gm_bytes_per_cycle)
  else:
    if npu.has_l0c_to_ub:
      fixpipe_us = cycles_us(accumulator_bytes, npu.l0c_to_ub_bytes_per_cycle)
    else:
      fixpipe_us = cycles_us(accumulator_bytes, npu.l0c_to_gm_bytes_per_cycle)
      vector_us["vector_mte2"] = cycles_us(
        accumulator_bytes / vectors, npu.gm_to_ub_bytes_per_cycle
      )
    per_core = work.outputs_per_tile / vectors
    vector_us["vector"] = cycles_us(
      SIMPLE_OPERATIONS_PER_SILU * per_core * FLOAT32_BYTES, npu.vector_bytes_per_cycle
    ) + cycles_us(EXP_OPERATIONS_PER_SILU * per_core, npu.exp_elements_per_cycle)
    vector_us["mte3"] = cycles_us(
      work.result_bytes_per_tile / vectors, npu.ub_to_gm_bytes_per_cycle
    )

  if work.num_stages > 1:
    step_us = max(mte2_us, mte1_us, cube_us)
  else:
    step_us = mte2_us + max(mte1_us, cube_us)
  steps_us = work.k_steps * step_us + bias_us
  slowest_vector_us = max(vector_us.values(), default=0.0)
  if work.accumulators > 1:
    tile_us = max(steps_us, fixpipe_us, slowest_vector_us)
    drain_us = fixpipe_us
  else:
    tile_us = max(steps_us + fixpipe_us, slowest_vector_us)
    drain_us = 0.0
  fill_us = mte2_us + mte1_us if work.num_stages > 1 and work.k_steps else 0.0
  hbm_us = work.hbm_bytes / (npu.hbm_bandwidth_bytes_per_s * npu.sustained_hbm_fraction) * 1e6

  times_us = {
    "mte2": rounds * work.k_steps * mte2_us,
    "mte1": rounds * (work.k_steps * mte1_us + bias_us),
    "cube": rounds * work.k_steps * cube_us,
    "fixpipe": rounds * fixpipe_us,
    **{name: rounds * value for name, value in vector_us.items()},
    "hbm": hbm_us,
    "launch": npu.launch_overhead_us,
  }
  rest_us = drain_us + sum(vector_us.values()) if rounds else 0.0
  total_us = npu.launch_overhead_us + fill_us + max(rounds * tile_us, hbm_us) + rest_us
  return CubeTime(
    times_us=FrozenMap(times_us),
    total_us=total_us,
    bound=max(times_us, key=lambda name: times_us[name]),
  )
