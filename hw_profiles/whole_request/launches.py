"""A step's kernels on the device, beside the host that submits them."""

import dataclasses
from collections.abc import Sequence

from hw_profiles.arguments import not_negative
from hw_profiles.timeline.engine import Task, schedule_tasks


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

  by the event simulation of `schedule_tasks`; with equal kernels it is
  `host_device_timeline` of as many segments.

  Args:
    kernels_us: Device time of each kernel, in order.
    launch_us: What the host takes to submit one.

  Raises:
    ValueError: a time below 0.
  """
  not_negative("launch_us", launch_us)
  tasks = []
  for index, kernel_us in enumerate(kernels_us):
    submitted, before = f"submit[{index}]", index - 1
    tasks.append(Task(submitted, launch_us, "host", (f"submit[{before}]",) if index else ()))
    after = (submitted, f"kernel[{before}]") if index else (submitted,)
    tasks.append(Task(f"kernel[{index}]", kernel_us, "device", after))
  return LaunchedStep(
    kernels=len(kernels_us),
    host_us=len(kernels_us) * launch_us,
    device_us=sum(kernels_us),
    ready_us=schedule_tasks(tasks).total_us if tasks else 0.0,
  )
