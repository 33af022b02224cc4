"""A step's kernels on the device, beside the host that submits them."""

import dataclasses
from collections.abc import Sequence

from hw_profiles.arguments import not_negative


@dataclasses.dataclass(frozen=True)
class LaunchedStep:
  """A step launched kernel by kernel.

  Attributes:
    kernels: Calls, each submitted on its own.
    host_us: Work of the host.
    device_us: Work of the device.
    ready_us: From the first submission to the end of the last kernel.
  """

  kernels: int
  host_us: float
  device_us: float
  ready_us: float

  @property
  def wait_us(self) -> float:
    """What the device waits for the host, the first submission included."""
    return max(0.0, self.ready_us - self.device_us)


def launched_step(kernels_us: Sequence[float], *, launch_us: float) -> LaunchedStep:
  """Kernel i starts once it is submitted and kernel i-1 has ended.

      ready = max over i of (i + 1)·launch + Σ_{j >= i} kernel_j

  One walk over the kernels: a what-if runs it for every stage, and the tests hold it
  against the event simulation of `schedule_tasks`. With equal kernels it is
  `host_device_timeline` of as many segments.

  Args:
    kernels_us: Device time of each kernel, in order.
    launch_us: What the host takes to submit one.

  Raises:
    ValueError: a time below 0.
  """
  not_negative("launch_us", launch_us)
  ready_us = 0.0
  for index, kernel_us in enumerate(kernels_us):
    not_negative(f"kernels_us[{index}]", kernel_us)
    ready_us = max(ready_us, (index + 1) * launch_us) + kernel_us
  return LaunchedStep(
    kernels=len(kernels_us),
    host_us=len(kernels_us) * launch_us,
    device_us=sum(kernels_us),
    ready_us=ready_us,
  )
