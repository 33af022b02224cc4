"""One persistent kernel with a task queue, against one launch for each operator."""

import dataclasses
from collections.abc import Sequence

from hw_profiles.arguments import at_least, collection, few_enough, not_negative
from hw_profiles.timeline.flow import BlockFlow, block_flow


@dataclasses.dataclass(frozen=True)
class PersistentPipeline:
  """A chain of operators over blocks of rows, launched apart or as tasks of one kernel.

  `saved_us` = `launches_saved_us` + `hidden_us` - `overhead_us`.

  Attributes:
    task_us: Time of each stage's task, overheads included.
    separate_us: Each operator its own kernel, which waits for the one before.
    persistent_us: One launch, tasks as soon as their block is ready.
    saved_us: The difference; negative where the overheads cost more.
    launches_saved_us: Launches that one kernel does not need.
    hidden_us: What the overlap would hide if tasks had no overhead.
    overhead_us: What scheduling and notification add to the longest chain.
    speedup: `separate_us` / `persistent_us`; 1 where neither takes time.
    tasks: When each task ran, from the end of the launch on.
  """

  task_us: tuple[float, ...]
  separate_us: float
  persistent_us: float
  saved_us: float
  launches_saved_us: float
  hidden_us: float
  overhead_us: float
  speedup: float
  tasks: BlockFlow


def persistent_pipeline(
  *,
  stage_us: Sequence[float],
  num_blocks: int,
  launch_us: float,
  schedule_us: float = 0.0,
  notify_us: float = 0.0,
  num_slots: int | None = None,
) -> PersistentPipeline:
  """Compares k launches in turn with one kernel that overlaps the stages by block.

  With stage times t_s, tasks u_s = t_s + schedule + notify and n blocks:

      separate     k·launch + n·Σ t
      persistent   launch + Σ u + (n-1)·max u        with enough buffer slots

  Example: 512 token rows (printed as "one feature vector of 512 tokens", which
  would be one row) in 8 blocks of 64, projection 12.8 us and activation 1.76
  us, launches of 5 us: 126.5 us apart; with 0.5 us of scheduling and 0.2 us of
  notification a task, 115.5 us. Only the seven activations beside later
  projections are hidden; the gain is greatest where stages are equally long.

  Args:
    stage_us: Time of one block in each operator, in order; the operators run on
      resources of their own (matrix units, vector units).
    num_blocks: Blocks the rows are cut into.
    launch_us: Time of one kernel launch.
    schedule_us: Fetching a task from the queue.
    notify_us: Telling that a task's block is ready.
    num_slots: Buffers for blocks under way, each held from the start of the first
      task to the end of the last; None: enough for all.

  Raises:
    ValueError: an argument is out of range.
  """
  collection("stage_us", stage_us)
  at_least("stages in stage_us", len(stage_us), 1)
  for stage, time_us in enumerate(stage_us):
    not_negative(f"stage_us[{stage}]", time_us)
  at_least("num_blocks", num_blocks, 0)
  few_enough("num_blocks", num_blocks, instead="the slowest stage sets the rate of longer runs")
  not_negative("launch_us", launch_us)
  not_negative("schedule_us", schedule_us)
  not_negative("notify_us", notify_us)
  task_us = tuple(time_us + schedule_us + notify_us for time_us in stage_us)
  tasks = block_flow([task_us] * num_blocks, num_slots=num_slots)
  bare_us = block_flow([tuple(stage_us)] * num_blocks, num_slots=num_slots).total_us
  apart_us = num_blocks * sum(stage_us)
  separate_us = len(stage_us) * launch_us + apart_us
  persistent_us = launch_us + tasks.total_us
  return PersistentPipeline(
    task_us=task_us,
    separate_us=separate_us,
    persistent_us=persistent_us,
    saved_us=separate_us - persistent_us,
    launches_saved_us=(len(stage_us) - 1) * launch_us,
    hidden_us=apart_us - bare_us,
    overhead_us=tasks.total_us - bare_us,
    speedup=separate_us / persistent_us if persistent_us else 1.0,
    tasks=tasks,
  )
