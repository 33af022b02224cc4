"""Time of the copies by which a kernel with a rule for pitches takes and gives other arrays.

An operand is copied to a padded one before the kernel, a padded result to one of
its own size after it, each by an elementwise kernel.
"""

from hw_profiles.arguments import ceil_div
from hw_profiles.cost.l2_reuse import L2_OPERAND_FRACTION
from hw_profiles.cost.sm_time import SmAmounts
from hw_profiles.cost.stream_time import (
  XLA_BLOCK_ELEMENTS,
  XLA_RESIDENT_BLOCKS,
  SmPass,
  sm_stream_time,
)
from hw_profiles.profile import GpuProfile


def padding_copy_us(elements: int, padded_elements: int, itemsize: int, gpu: GpuProfile) -> float:
  """Microseconds of one copy between an array and its padded form, and of a gap between launches.

  On an H200 the copies of a 113 x 1023 and a 1023 x 203 bfloat16 operand take 1.44
  and 1.5 to 2.2 us, that of the 113 x 203 result 1.02 (docs/results/h200-gemm.json,
  session_5); predicted 1.0 to 1.1 each, without the gap. 4096 x 12289, 200 MB both
  ways: 49 us.

  Args:
    elements: Of the array.
    padded_elements: Of the padded array.
    itemsize: Bytes of an element.
    gpu: The device.
  """
  moved = (elements + padded_elements) * itemsize
  time = sm_stream_time(
    gpu,
    (
      SmPass(
        programs=ceil_div(padded_elements, XLA_BLOCK_ELEMENTS),
        resident_blocks=XLA_RESIDENT_BLOCKS,
        per_program=SmAmounts(l2_bytes=2 * XLA_BLOCK_ELEMENTS * itemsize),
        round_trips=1,
        dram_bytes=moved if moved > gpu.l2_bytes * L2_OPERAND_FRACTION else 0,
      ),
    ),
  )
  return gpu.launch_gap_us + time.total.us
