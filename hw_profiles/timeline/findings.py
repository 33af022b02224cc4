"""What is wrong with a stream program: what can never run, and what nothing orders."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from hw_profiles.timeline.engine import TaskInterval, find_cycle
from hw_profiles.timeline.stream_graph import Node

FindingKind = Literal[
  "never_recorded",
  "wait_cycle",
  "collective_not_issued",
  "overwritten_in_use",
  "read_before_written",
  "writes_unordered",
]


@dataclasses.dataclass(frozen=True)
class Finding:
  """One fault, and who is to blame.

  Attributes:
    kind: "never_recorded", "wait_cycle" and "collective_not_issued" are stuck for
      ever. "overwritten_in_use" (a write that may come before the last use),
      "read_before_written" and "writes_unordered" may run, and be wrong.
    message: The fault as a sentence, with the cure.
    stream: The queue that waits, or that runs the later access.
    operation: The step that waits, or the later access.
    event: The event it waits for.
    buffer: The buffer.
    other_stream: The queue of the earlier access, of the cycle's next wait, or
      the one that never issues its part.
    other_operation: The earlier access, or the cycle's next wait.
    overlap_us: How much of the earlier access was still to come, in this run,
      when the later one began; 0 where only timing kept them apart.
  """

  kind: FindingKind
  message: str
  stream: str
  operation: str
  event: str | None = None
  buffer: str | None = None
  other_stream: str | None = None
  other_operation: str | None = None
  overlap_us: float = 0.0


def stuck_findings(nodes: Sequence[Node], stuck: Sequence[int]) -> list[Finding]:
  """Why the nodes in `stuck` never run."""
  findings = []
  collectives = set()
  for position in stuck:
    node = nodes[position]
    if node.missing and node.event is not None:
      findings.append(
        Finding(
          kind="never_recorded",
          message=(
            f"stream {node.stream!r} waits for event {node.event!r}, which nothing records;"
            " record it after the last use of what it guards, or drop the wait"
          ),
          stream=node.stream,
          operation=node.title,
          event=node.event,
        )
      )
    elif node.missing and node.name not in collectives:
      collectives.add(node.name)
      findings += [
        Finding(
          kind="collective_not_issued",
          message=(
            f"stream {absent!r} never issues {node.label}, for which stream {node.stream!r} waits;"
            " every member must issue it"
          ),
          stream=node.stream,
          operation=node.title,
          other_stream=absent,
        )
        for absent in node.missing
      ]
  remaining = list(stuck)
  while cycle := find_cycle(remaining, {position: nodes[position].before for position in stuck}):
    findings.append(_cycle_finding(nodes, cycle))
    remaining = [position for position in remaining if position not in cycle]
  return findings


def _cycle_finding(nodes: Sequence[Node], cycle: Sequence[int]) -> Finding:
  """Names the steps at which one queue of the cycle waits for another."""
  around = [*cycle[1:], cycle[0]]
  steps = [
    nodes[position]
    for position, blocker in zip(cycle, around, strict=True)
    if blocker not in nodes[position].before[: nodes[position].queue_before]
  ]
  first, second = steps[0], steps[1 % len(steps)]
  texts = [f"{step.label} on stream {step.stream!r}" for step in steps]
  chain = ", which can end only after the ".join([*texts[1:], texts[0]])
  cure = (
    "record the event ahead of the waits that its own queue stands behind"
    if first.event is not None
    else "issue collectives in one order on all streams"
  )
  return Finding(
    kind="wait_cycle",
    message=f"the {texts[0]} can end only after the {chain}: none ever does; {cure}",
    stream=first.stream,
    operation=first.title,
    event=first.event,
    other_stream=second.stream,
    other_operation=second.title,
  )


def _ancestors(nodes: Sequence[Node], order: Sequence[int]) -> dict[int, int]:
  """For each node, the set of those that have ended before it starts, as bits."""
  above: dict[int, int] = {}
  for position in order:
    bits = 0
    for before in nodes[position].before:
      bits |= above[before] | 1 << before
    above[position] = bits
  return above


def buffer_findings(
  nodes: Sequence[Node], order: Sequence[int], intervals: dict[int, TaskInterval]
) -> list[Finding]:
  """Accesses of one buffer that nothing orders although the order matters.

  The order of issue is the one meant. Two accesses, one of them a write, must be
  ordered by queues, events and host waits; timing does not count, as it changes.
  """
  above = _ancestors(nodes, order)
  last_write: dict[str, int] = {}
  reads_since: dict[str, list[int]] = {}
  findings = []

  def compare(earlier: int, later: int, buffer: str, kind: FindingKind) -> None:
    if earlier != later and not above[later] >> earlier & 1:
      findings.append(_buffer_finding(nodes, intervals, earlier, later, buffer, kind))

  for position in sorted(order):
    node = nodes[position]
    for buffer in node.reads:
      if buffer in last_write:
        compare(last_write[buffer], position, buffer, "read_before_written")
      reads_since.setdefault(buffer, []).append(position)
    for buffer in node.writes:
      if buffer in last_write:
        compare(last_write[buffer], position, buffer, "writes_unordered")
      for reader in reads_since.get(buffer, ()):
        compare(reader, position, buffer, "overwritten_in_use")
      last_write[buffer] = position
      reads_since[buffer] = []
  return findings


def _buffer_finding(
  nodes: Sequence[Node],
  intervals: dict[int, TaskInterval],
  earlier: int,
  later: int,
  buffer: str,
  kind: FindingKind,
) -> Finding:
  first, second = nodes[earlier], nodes[later]
  what = {
    "overwritten_in_use": "overwrites buffer {!r}, which {} on stream {!r} may still be reading",
    "read_before_written": "reads buffer {!r}, which {} on stream {!r} may not have written yet",
    "writes_unordered": "writes buffer {!r}, which {} on stream {!r} may yet write over",
  }[kind].format(buffer, first.label, first.stream)
  overlap_us = max(0.0, intervals[earlier].end_us - intervals[later].start_us)
  timing = (
    f"in this run {overlap_us:g} us too early"
    if overlap_us
    else "in this run only timing kept them apart"
  )
  return Finding(
    kind=kind,
    message=(
      f"{second.label} on stream {second.stream!r} {what} ({timing}); record an event on"
      f" {first.stream!r} after {first.label} and let {second.stream!r} wait for it before"
      f" {second.label}"
    ),
    stream=second.stream,
    operation=second.name,
    buffer=buffer,
    other_stream=first.stream,
    other_operation=first.name,
    overlap_us=overlap_us,
  )
