"""What every operation of a stream program waits for."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from hw_profiles.timeline.stream_operations import (
  HOST_STREAM,
  Collective,
  HostWait,
  HostWork,
  Launch,
  Record,
  StreamOperation,
  Wait,
)

UnrecordedWait = Literal["blocks", "passes"]


@dataclasses.dataclass
class Node:
  """One step of one queue.

  Attributes:
    label: What it is, for messages.
    stream: The queue it stands in, the host's included.
    shown: Whether it is an operation of the program, not a submission.
    name: The operation's name; empty for steps without.
    duration_us: How long it takes.
    resource: What it occupies.
    reads: Buffers it reads.
    writes: Buffers it overwrites.
    event: The event it records or waits for.
    before: Positions of the nodes that must have ended: the one ahead in its
      queue and its submission, before what it waits for otherwise.
    queue_before: How many of `before` are of the first kind.
    blocker: The node that sets the event it waits for.
    missing: Streams that never do their part; not empty: it can never run.
  """

  label: str
  stream: str
  shown: bool = True
  name: str = ""
  duration_us: float = 0.0
  resource: str | None = None
  reads: tuple[str, ...] = ()
  writes: tuple[str, ...] = ()
  event: str | None = None
  before: list[int] = dataclasses.field(default_factory=list)
  queue_before: int = 0
  blocker: int | None = None
  missing: tuple[str, ...] = ()

  @property
  def title(self) -> str:
    """The operation's name, or what the step does where it has none."""
    return self.name or self.label


class _Builder:
  """Adds nodes to queues; every queue is a chain."""

  def __init__(self) -> None:
    self.nodes: list[Node] = []
    self.tails: dict[str, int] = {}
    self.records: dict[str, list[tuple[int, int]]] = {}  # event: (operation, node)
    self.waits: list[tuple[int, int]] = []  # (operation, node)
    self.arrivals: dict[str, dict[str, int]] = {}  # collective: stream: node
    self.collectives: list[tuple[Collective, int]] = []
    self.names: set[str] = set()

  def add(self, node: Node, submission: int | None = None) -> int:
    position = len(self.nodes)
    for before in (self.tails.get(node.stream), submission):
      if before is not None:
        node.before.append(before)
    node.queue_before = len(node.before)
    self.nodes.append(node)
    self.tails[node.stream] = position
    return position

  def submit(self, label: str, submit_us: float = 0.0) -> int:
    return self.add(
      Node(label=f"submission of {label}", stream=HOST_STREAM, shown=False, duration_us=submit_us)
    )

  def claim(self, name: str) -> None:
    if name in self.names:
      raise ValueError(f"program: two operations are named {name!r}; names must differ")
    self.names.add(name)

  def work(self, operation: HostWork | Launch | Collective, stream: str) -> Node:
    return Node(
      label=repr(operation.name),
      stream=stream,
      name=operation.name,
      duration_us=operation.duration_us,
      reads=operation.reads,
      writes=operation.writes,
    )

  def operation(self, index: int, operation: StreamOperation) -> None:
    if (
      isinstance(operation, Launch | Record | Wait | Collective) and operation.stream == HOST_STREAM
    ):
      raise ValueError(
        f"{operation}: stream {HOST_STREAM!r} is the host's own queue; use HostWork or HostWait"
      )
    match operation:
      case HostWork():
        self.claim(operation.name)
        self.add(self.work(operation, HOST_STREAM))
      case HostWait():
        label = f"wait for event {operation.event!r}"
        node = Node(label=label, stream=HOST_STREAM, event=operation.event)
        self.waits.append((index, self.add(node)))
      case Launch():
        self.claim(operation.name)
        node = self.work(operation, operation.stream)
        node.resource = operation.resource
        self.add(node, self.submit(node.label, operation.submit_us))
      case Record():
        label = f"record of event {operation.event!r}"
        node = Node(label=label, stream=operation.stream, event=operation.event)
        position = self.add(node, self.submit(label))
        self.records.setdefault(operation.event, []).append((index, position))
      case Wait():
        label = f"wait for event {operation.event!r}"
        node = Node(label=label, stream=operation.stream, event=operation.event)
        self.waits.append((index, self.add(node, self.submit(label))))
      case Collective():
        self.collective(operation)
      case _:
        raise ValueError(
          f"program[{index}]={operation!r}: expected HostWork, HostWait, Launch, Record, Wait or"
          " Collective"
        )

  def collective(self, operation: Collective) -> None:
    label = f"arrival at {operation.name!r}"
    arrivals = self.arrivals.setdefault(operation.name, {})
    if operation.stream in arrivals:
      raise ValueError(
        f"program: stream {operation.stream!r} issues Collective({operation.name!r}) twice;"
        " name each round differently"
      )
    if not arrivals:
      self.claim(operation.name)
    arrival = Node(label=label, stream=operation.stream, shown=False)
    arrivals[operation.stream] = self.add(arrival, self.submit(repr(operation.name)))
    self.collectives.append((operation, self.add(self.work(operation, operation.stream))))

  def join_collectives(self) -> None:
    members: dict[str, tuple[str, ...]] = {}
    for operation, position in self.collectives:
      expected = members.setdefault(operation.name, operation.members)
      if set(expected) != set(operation.members):
        raise ValueError(
          f"Collective({operation.name!r}).members={operation.members!r} on stream"
          f" {operation.stream!r}: expected {expected!r} as on the others"
        )
      arrivals = self.arrivals[operation.name]
      node = self.nodes[position]
      node.missing = tuple(stream for stream in operation.members if stream not in arrivals)
      node.before += [arrival for stream, arrival in arrivals.items() if stream != operation.stream]

  def join_waits(self, unrecorded_wait: UnrecordedWait) -> None:
    for index, position in self.waits:
      node = self.nodes[position]
      records = self.records.get(node.event or "", [])
      earlier = [record for issued, record in records if issued < index]
      if earlier:
        node.blocker = earlier[-1]
      elif unrecorded_wait == "blocks":
        node.blocker = records[0][1] if records else None
        node.missing = () if records else ("any stream",)
      if node.blocker is not None:
        node.before.append(node.blocker)


def stream_graph(program: Sequence[StreamOperation], unrecorded_wait: UnrecordedWait) -> list[Node]:
  """The steps of a program, submissions included, each with what it waits for."""
  builder = _Builder()
  for index, operation in enumerate(program):
    builder.operation(index, operation)
  builder.join_collectives()
  builder.join_waits(unrecorded_wait)
  return builder.nodes


def runnable_order(nodes: Sequence[Node]) -> list[int]:
  """The nodes that can run, each after all it waits for."""
  followers: list[list[int]] = [[] for _ in nodes]
  open_waits = [len(node.before) + bool(node.missing) for node in nodes]
  for position, node in enumerate(nodes):
    for before in node.before:
      followers[before].append(position)
  order = [position for position, waits in enumerate(open_waits) if waits == 0]
  for position in order:  # grows while it is walked
    for follower in followers[position]:
      open_waits[follower] -= 1
      if open_waits[follower] == 0:
        order.append(follower)
  return order
