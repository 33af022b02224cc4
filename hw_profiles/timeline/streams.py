"""Runs a program of streams, events and buffers, and says what is wrong with it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from hw_profiles.arguments import collection
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.timeline.engine import Task, TaskInterval, schedule_tasks
from hw_profiles.timeline.findings import Finding, buffer_findings, stuck_findings
from hw_profiles.timeline.stream_graph import (
  Node,
  UnrecordedWait,
  runnable_order,
  stream_graph,
)
from hw_profiles.timeline.stream_operations import HOST_STREAM, StreamOperation


@dataclasses.dataclass(frozen=True)
class PendingWait:
  """A wait that holds up its queue at some time.

  Attributes:
    stream: The queue.
    event: What it waits for.
    recorded_by: The stream that records it; None where none does.
    status: "slow": it will be recorded. "stuck": it never will.
    until_us: When it is recorded; None where it never is.
  """

  stream: str
  event: str
  recorded_by: str | None
  status: Literal["slow", "stuck"]
  until_us: float | None


@dataclasses.dataclass(frozen=True)
class StreamTimeline:
  """What a stream program did.

  Attributes:
    intervals: (stream, name) of host work, launches and collectives to when they
      ran; those that never ran are missing.
    total_us: End of the last step that ran.
    submitted_us: When the host was through with the program; None where it is
      stuck itself.
    busy_us: Resource to the time it worked.
    findings: Faults; empty for a program that ends and orders all its accesses.
    unfinished: Stream to the steps that never run, in order.
  """

  intervals: FrozenMap[tuple[str, str], TaskInterval]
  total_us: float
  submitted_us: float | None
  busy_us: FrozenMap[str, float]
  findings: tuple[Finding, ...]
  unfinished: FrozenMap[str, tuple[str, ...]]
  _waits: tuple[tuple[float, PendingWait], ...] = dataclasses.field(repr=False)

  def interval(self, name: str) -> TaskInterval:
    """When the operation of that name ran; of a collective, its first part.

    Raises:
      ValueError: there is no such operation, or it never ran.
    """
    for (_, ran), interval in self.intervals.items():
      if ran == name:
        return interval
    known = ", ".join(ran for _, ran in self.intervals)
    raise ValueError(f"name={name!r}: nothing of that name ran; expected one of {known}")

  def waits_at(self, time_us: float) -> tuple[PendingWait, ...]:
    """The waits that hold up their queues at `time_us`: slow, or stuck?

    What a wait that has timed out should print.
    """
    return tuple(
      wait
      for reached_us, wait in self._waits
      if reached_us <= time_us and (wait.until_us is None or time_us < wait.until_us)
    )


def _pending_waits(
  nodes: Sequence[Node], intervals: dict[int, TaskInterval]
) -> tuple[tuple[float, PendingWait], ...]:
  """(when its queue came to it, the wait), of all that hold up a queue."""
  waits = []
  for position, node in enumerate(nodes):
    ahead = node.before[: node.queue_before]
    is_wait = node.event is not None and (node.blocker is not None or bool(node.missing))
    if not is_wait or any(before not in intervals for before in ahead):
      continue
    reached_us = max((intervals[before].end_us for before in ahead), default=0.0)
    until_us = intervals[position].end_us if position in intervals else None
    if until_us is None or until_us > reached_us:
      waits.append(
        (
          reached_us,
          PendingWait(
            stream=node.stream,
            event=node.event or "",
            recorded_by=None if node.blocker is None else nodes[node.blocker].stream,
            status="stuck" if until_us is None else "slow",
            until_us=until_us,
          ),
        )
      )
  return tuple(waits)


def simulate_streams(
  program: Sequence[StreamOperation],
  *,
  capacities: Mapping[str, int] | None = None,
  unrecorded_wait: UnrecordedWait = "blocks",
) -> StreamTimeline:
  """Runs what can run, and names what cannot and what is not ordered.

  Streams are in-order queues. The host issues the program in order; an operation
  starts once it is issued, all before it in its stream has ended, the events it
  stands behind are set, and its engine is free. A wait means the latest record
  issued before it; failing that, the first issued after it.

  Nothing hangs: an event that nothing records, waits in a circle and a collective
  that a member never issues are findings that name stream, operation and event.
  So are two accesses of one buffer that queues, events and host waits leave
  unordered, even where their times happened not to overlap.

  Args:
    program: In the order the host issues it. A buffer that is read and never
      written before is an input.
    capacities: Operations that a resource runs at once; 1 where not named.
    unrecorded_wait: What a wait does where no record was issued before it:
      "blocks" until one is (a flag, as Ascend's cores and memory-value waits
      have it); "passes", as CUDA's cudaStreamWaitEvent does, so that the fault
      shows as a missing order instead.

  Raises:
    ValueError: names that are not unique, an operation of another type, or an
      argument out of range.
  """
  collection("program", program)
  if unrecorded_wait not in get_args(UnrecordedWait):
    raise ValueError(
      f"unrecorded_wait={unrecorded_wait!r}: expected one of {', '.join(get_args(UnrecordedWait))}"
    )
  nodes = stream_graph(program, unrecorded_wait)
  order = runnable_order(nodes)
  runs = set(order)
  stuck = [position for position in range(len(nodes)) if position not in runs]
  schedule = schedule_tasks(
    [
      Task(
        str(position),
        nodes[position].duration_us,
        nodes[position].resource,
        tuple(str(before) for before in nodes[position].before),
      )
      for position in sorted(runs)
    ],
    capacities=capacities,
  )
  intervals = {int(name): interval for name, interval in schedule.intervals.items()}
  unfinished: dict[str, list[str]] = {}
  for position in stuck:
    if nodes[position].shown:
      unfinished.setdefault(nodes[position].stream, []).append(nodes[position].title)
  host_ends = [intervals[p].end_us for p in runs if nodes[p].stream == HOST_STREAM]
  host_is_stuck = any(nodes[position].stream == HOST_STREAM for position in stuck)
  return StreamTimeline(
    intervals=FrozenMap(
      {
        (nodes[position].stream, nodes[position].name): dataclasses.replace(
          intervals[position], name=nodes[position].name
        )
        for position in sorted(runs)
        if nodes[position].name
      }
    ),
    total_us=schedule.total_us,
    submitted_us=None if host_is_stuck else max(host_ends, default=0.0),
    busy_us=schedule.busy_us,
    findings=(*stuck_findings(nodes, stuck), *buffer_findings(nodes, order, intervals)),
    unfinished=FrozenMap({stream: tuple(steps) for stream, steps in unfinished.items()}),
    _waits=_pending_waits(nodes, intervals),
  )
