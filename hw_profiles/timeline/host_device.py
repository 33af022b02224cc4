"""Host and device of a sequence of submissions, on one time axis."""

import dataclasses
from collections.abc import Mapping

from hw_profiles.arguments import at_least, few_enough, not_negative
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.timeline.engine import Task, TaskInterval, schedule_tasks

HOST, DEVICE = "host", "device"


@dataclasses.dataclass(frozen=True)
class HostDeviceTimeline:
  """What host and device did, and what each way to measure it would show.

  Attributes:
    submit_us: A host clock around the asynchronous calls: until the host is done.
    device_us: Device events around the work: from its first start to its last end.
    ready_us: A host clock that waits for the result: until the last segment's end.
    host_busy_us: Work of the host.
    device_busy_us: Work of the device.
    device_idle_us: Gaps between the device's first start and last end.
    operation_us: Time of each device operation, all segments together.
    host_intervals: Preparation of each segment, its independent part first.
    device_intervals: Operations in the order they ran.
  """

  submit_us: float
  device_us: float
  ready_us: float
  host_busy_us: float
  device_busy_us: float
  device_idle_us: float
  operation_us: FrozenMap[str, float]
  host_intervals: tuple[TaskInterval, ...]
  device_intervals: tuple[TaskInterval, ...]

  def besides_us(self, operation: str) -> float:
    """What is left of `ready_us` however fast `operation` becomes, if nothing overlaps it.

    Raises:
      ValueError: the device runs no such operation.
    """
    if operation not in self.operation_us:
      raise ValueError(
        f"operation={operation!r}: the device runs only {', '.join(self.operation_us) or 'nothing'}"
      )
    return self.ready_us - self.operation_us[operation]


def _operations(device_us: float | Mapping[str, float]) -> dict[str, float]:
  if not isinstance(device_us, Mapping):
    not_negative("device_us", device_us)
    return {"kernel": device_us}
  for name, duration_us in device_us.items():
    not_negative(f"device_us[{name!r}]", duration_us)
  return dict(device_us)


def host_device_timeline(
  *,
  host_us: float,
  device_us: float | Mapping[str, float],
  num_segments: int = 1,
  dependent_host_us: float = 0.0,
  overlap: bool = True,
  max_ahead: int | None = None,
) -> HostDeviceTimeline:
  """Runs segments that the host prepares and the device then computes, in order.

  With host h, device d, dependent part r, n segments and no bound on how far
  the host runs ahead:

      overlapped     h + r + (n-1)·(max(h, d) + r) + d    where r > 0
                     h + (n-1)·max(h, d) + d              where r = 0
      not            n·(h + r + d)

  Example: 100 segments of 20 us each way take 4000 us one after the other and
  2020 us overlapped; a device four times as fast only brings 2005 us, since
  the host takes no less; both at 5 us take 505 us.

  Example: submission 3 us, then H2D 8, kernel 20 and D2H 4 us: ready after 35.
  A kernel of 5 us makes it 20: four times the kernel is 1.75 times the call.

  Args:
    host_us: Preparing and submitting one segment; the part that needs no result.
    device_us: Device time of a segment, or operation name to time for operations
      that follow each other (copies, kernels).
    num_segments: Segments in the sequence.
    dependent_host_us: The part of a segment's preparation that needs the result
      of the segment before: the next token, whether to stop.
    overlap: False: the host waits for each result before it prepares on.
    max_ahead: Segments the host may have submitted and the device not yet
      finished (buffers for arguments and inputs); None: any number.

  Raises:
    ValueError: an argument is out of range.
  """
  not_negative("host_us", host_us)
  not_negative("dependent_host_us", dependent_host_us)
  at_least("num_segments", num_segments, 0)
  few_enough("num_segments", num_segments, instead="the docstring has the closed form")
  if max_ahead is not None:
    at_least("max_ahead", max_ahead, 1)
  operations = _operations(device_us)
  if not overlap:
    host_us, dependent_host_us = 0.0, host_us + dependent_host_us

  host: list[str] = []
  device: list[str] = []
  finished: list[str] = []  # the last device task of each segment
  tasks = []
  for segment in range(num_segments):
    independent, dependent = f"prepare[{segment}]", f"depend[{segment}]"
    waits = host[-1:]
    if max_ahead is not None and segment >= max_ahead:
      waits = [*waits, finished[segment - max_ahead]]
    tasks.append(Task(independent, host_us, HOST, tuple(waits)))
    needs_result = finished[-1:] if dependent_host_us or not overlap else []
    tasks.append(Task(dependent, dependent_host_us, HOST, (independent, *needs_result)))
    host += [independent, dependent]
    previous = [dependent, *device[-1:]]
    for operation, duration_us in operations.items():
      name = f"{operation}[{segment}]"
      tasks.append(Task(name, duration_us, DEVICE, tuple(previous)))
      device.append(name)
      previous = [name]
    finished.append(previous[0])

  schedule = schedule_tasks(tasks)
  host_intervals = tuple(schedule.intervals[name] for name in host)
  device_intervals = tuple(schedule.intervals[name] for name in device)
  submit_us = host_intervals[-1].end_us if host else 0.0
  span_us = device_intervals[-1].end_us - device_intervals[0].start_us if device else 0.0
  device_busy_us = schedule.busy_us.get(DEVICE, 0.0)
  return HostDeviceTimeline(
    submit_us=submit_us,
    device_us=span_us,
    ready_us=schedule.total_us,
    host_busy_us=schedule.busy_us.get(HOST, 0.0),
    device_busy_us=device_busy_us,
    device_idle_us=max(0.0, span_us - device_busy_us),
    operation_us=FrozenMap(
      {name: num_segments * duration_us for name, duration_us in operations.items()}
    ),
    host_intervals=host_intervals,
    device_intervals=device_intervals,
  )
