"""The discrete-event engine: tasks that wait for others and for a resource."""

import dataclasses
import heapq
from collections.abc import Mapping, Sequence

from hw_profiles.arguments import at_least, collection, mapping, not_negative
from hw_profiles.frozen_map import FrozenMap


@dataclasses.dataclass(frozen=True)
class Task:
  """Work that takes a fixed time once it has started; nothing interrupts it.

  Attributes:
    name: Its key, unique among the tasks of a run.
    duration_us: From start to end.
    resource: What it occupies while it runs; None where nothing is contended.
    after: Tasks that must have ended before it may start.
  """

  name: str
  duration_us: float
  resource: str | None = None
  after: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    collection(f"Task({self.name!r}).after", self.after)
    not_negative(f"Task({self.name!r}).duration_us", self.duration_us)
    object.__setattr__(self, "after", tuple(self.after))


@dataclasses.dataclass(frozen=True)
class TaskInterval:
  """When one task ran.

  Attributes:
    name: The task's.
    resource: The task's.
    ready_us: All it waits for has ended.
    start_us: Its resource took it up.
    end_us: It is done.
  """

  name: str
  resource: str | None
  ready_us: float
  start_us: float
  end_us: float

  @property
  def queued_us(self) -> float:
    """How long it was ready before its resource took it up."""
    return self.start_us - self.ready_us


@dataclasses.dataclass(frozen=True)
class TaskSchedule:
  """What `schedule_tasks` found.

  Attributes:
    intervals: Task name to when it ran, in the order given.
    total_us: End of the last task; 0 where there is none.
    busy_us: Resource to the time its tasks took, all servers together.
  """

  intervals: FrozenMap[str, TaskInterval]
  total_us: float
  busy_us: FrozenMap[str, float]


def _successors(tasks: Sequence[Task]) -> list[list[int]]:
  """For each task, the positions of those that wait for it, once for each mention."""
  positions: dict[str, int] = {}
  for position, task in enumerate(tasks):
    if task.name in positions:
      raise ValueError(f"tasks: two are named {task.name!r}; names must differ")
    positions[task.name] = position
  followers: list[list[int]] = [[] for _ in tasks]
  for position, task in enumerate(tasks):
    for name in task.after:
      if name not in positions:
        known = ", ".join(positions)
        raise ValueError(f"Task({task.name!r}).after={name!r}: no such task among {known}")
      followers[positions[name]].append(position)
  return followers


def find_cycle(nodes: Sequence[int], waits_for: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
  """A cycle among `nodes`, each followed by one it waits for; empty where there is none."""
  members = set(nodes)
  state: dict[int, bool] = {}  # True: on the present path
  for root in nodes:
    if root in state:
      continue
    path = [root]
    branches = [iter(waits_for.get(root, ()))]
    state[root] = True
    while path:
      for blocker in branches[-1]:
        if blocker not in members:
          continue
        if state.get(blocker):
          return tuple(path[path.index(blocker) :])
        if blocker not in state:
          state[blocker] = True
          path.append(blocker)
          branches.append(iter(waits_for.get(blocker, ())))
          break
      else:
        state[path.pop()] = False
        branches.pop()
  return ()


def _refuse_cycle(tasks: Sequence[Task], unfinished: Sequence[int]) -> None:
  positions = {task.name: position for position, task in enumerate(tasks)}
  waits_for = {task: [positions[name] for name in tasks[task].after] for task in unfinished}
  cycle = find_cycle(unfinished, waits_for)
  names = " waits for ".join(repr(tasks[position].name) for position in (*cycle, cycle[0]))
  raise ValueError(f"tasks: none of these can ever start: {names}; take one of the waits out")


def schedule_tasks(
  tasks: Sequence[Task], *, capacities: Mapping[str, int] | None = None
) -> TaskSchedule:
  """Runs every task as early as what it waits for and its resource allow.

  A resource serves in the order in which tasks become ready, ties in the order
  given. An in-order queue (a stream) is a chain: each task after the one before.

  Args:
    tasks: In any order.
    capacities: Tasks that a resource runs at once; 1 where not named.

  Raises:
    ValueError: two tasks of one name, a wait for a task that does not exist,
      tasks that wait for each other in a circle (the message names it), or a
      capacity below 1.
  """
  collection("tasks", tasks, Task)
  if capacities is not None:
    mapping("capacities", capacities)
  capacities = {} if capacities is None else capacities
  for resource, capacity in capacities.items():
    at_least(f"capacities[{resource!r}]", capacity, 1)
  followers = _successors(tasks)
  open_waits = [len(task.after) for task in tasks]
  free: dict[str, int] = {}
  queues: dict[str, list[tuple[float, int]]] = {}
  running: list[tuple[float, int]] = []
  ready_us = [0.0] * len(tasks)
  start_us = [0.0] * len(tasks)
  ended: dict[int, float] = {}

  def start(position: int, now_us: float) -> None:
    start_us[position] = now_us
    heapq.heappush(running, (now_us + tasks[position].duration_us, position))

  def make_ready(position: int, now_us: float) -> None:
    ready_us[position] = now_us
    resource = tasks[position].resource
    if resource is None:
      start(position, now_us)
    else:
      free.setdefault(resource, capacities.get(resource, 1))
      heapq.heappush(queues.setdefault(resource, []), (now_us, position))

  def serve(now_us: float) -> None:
    for resource, queue in queues.items():
      while queue and free[resource]:
        free[resource] -= 1
        start(heapq.heappop(queue)[1], now_us)

  for position, waits in enumerate(open_waits):
    if waits == 0:
      make_ready(position, 0.0)
  serve(0.0)
  while running:
    now_us = running[0][0]
    # all that ends now first, so that what becomes ready together is served in the order given
    while running and running[0][0] == now_us:
      position = heapq.heappop(running)[1]
      ended[position] = now_us
      freed = tasks[position].resource
      if freed is not None:
        free[freed] += 1
      for follower in followers[position]:
        open_waits[follower] -= 1
        if open_waits[follower] == 0:
          make_ready(follower, now_us)
    serve(now_us)

  if len(ended) < len(tasks):
    _refuse_cycle(tasks, [position for position in range(len(tasks)) if position not in ended])
  busy_us: dict[str, float] = {}
  for task in tasks:
    if task.resource is not None:
      busy_us[task.resource] = busy_us.get(task.resource, 0.0) + task.duration_us
  return TaskSchedule(
    intervals=FrozenMap(
      {
        task.name: TaskInterval(
          name=task.name,
          resource=task.resource,
          ready_us=ready_us[position],
          start_us=start_us[position],
          end_us=ended[position],
        )
        for position, task in enumerate(tasks)
      }
    ),
    total_us=max(ended.values(), default=0.0),
    busy_us=FrozenMap(busy_us),
  )
