"""Graph replay: fewer submissions, the same kernels, and inputs that may need a copy."""

import dataclasses
import math

from hw_profiles.arguments import at_least, not_negative, positive


@dataclasses.dataclass(frozen=True)
class LaunchCounts:
  """Work of the host and of the device, which are different counts.

  Attributes:
    submissions: What the host issues.
    kernels: What the device runs.
  """

  submissions: int
  kernels: int


def launch_counts(*, kernels_per_call: int, calls: int, graph_replay: bool) -> LaunchCounts:
  """submissions = calls with replay, else calls·kernels; kernels = calls·kernels.

  Example: three calls of an FFN of 6 kernels: 18 submissions and 18 kernels;
  3 and 18 with replay; 15 and 15 with one kernel fused away; 3 and 15 with
  both. Replay saves host work, fusion saves kernels (and, launched one by one,
  submissions too).

  Args:
    kernels_per_call: Kernels of one call, after fusion.
    calls: Calls.
    graph_replay: Whether a call is one replay of a recorded graph.

  Raises:
    ValueError: a count below 0, or `graph_replay` is no bool.
  """
  at_least("kernels_per_call", kernels_per_call, 0)
  at_least("calls", calls, 0)
  if not isinstance(graph_replay, bool):
    raise ValueError(f"graph_replay={graph_replay!r}: expected True or False")
  kernels = calls * kernels_per_call
  return LaunchCounts(
    submissions=calls if graph_replay and kernels_per_call else kernels, kernels=kernels
  )


@dataclasses.dataclass(frozen=True)
class GraphReplay:
  """One call launched kernel by kernel, against the replay of its graph.

  Attributes:
    eager_us: Computing, and the device's waits for the host.
    copy_us: Bringing the input to the address the graph has recorded.
    graph_us: Replay, copy and computing.
    saved_us: eager - graph; negative where the copy costs more.
    saved_without_copy_us: What replay saves on the host's account alone.
    replay_is_faster: Whether anything is saved.
    break_even_bytes: Size of input at which nothing is gained or lost: replay is
      faster below; infinite where nothing need be copied and replay saves, 0
      where it saves nothing at any size.
  """

  eager_us: float
  copy_us: float
  graph_us: float
  saved_us: float
  saved_without_copy_us: float
  replay_is_faster: bool
  break_even_bytes: float

  def largest_rows(self, row_bytes: int) -> int | None:
    """Most input rows of `row_bytes` with which replay is faster; None: any number.

    Raises:
      ValueError: `row_bytes` below 1.
    """
    at_least("row_bytes", row_bytes, 1)
    if math.isinf(self.break_even_bytes):
      return None
    return max(0, math.ceil(self.break_even_bytes / row_bytes) - 1)


def graph_replay_break_even(
  *,
  compute_us: float,
  eager_wait_us: float,
  replay_us: float,
  input_bytes: int,
  bandwidth_bytes_per_s: float,
  writes_in_place: bool = False,
) -> GraphReplay:
  """Replay is faster where 2·input / bandwidth < eager_wait - replay.

      eager  = compute + eager_wait
      graph  = compute + replay + copy,  copy = 2·input / bandwidth

  Example: computing 20 us, waits 20 us, replay 5 us, 1792 GB/s. An input
  [256, 4096] bfloat16 (2 MiB) takes 2.3 us to copy: 27.3 against 40 us. With
  2048 rows of input (16 MiB) the copy takes 18.7 us: 43.7 us, slower than
  eager. The limit is 12.8 MiB. (The text this comes from says that the output
  grows to 2048 rows; what is copied, and must grow, is the input.)

  Args:
    compute_us: Device time of the kernels, the same both ways.
    eager_wait_us: Time the device waits for submissions without a graph.
    replay_us: Replaying the graph and preparing its metadata.
    input_bytes: What must stand at the graph's addresses.
    bandwidth_bytes_per_s: Of device memory, shared by the copy's reads and writes.
    writes_in_place: Whether the operation before writes there by itself, so that
      nothing is copied.

  Raises:
    ValueError: an argument is out of range.
  """
  not_negative("compute_us", compute_us)
  not_negative("eager_wait_us", eager_wait_us)
  not_negative("replay_us", replay_us)
  at_least("input_bytes", input_bytes, 0)
  positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
  saved_without_copy_us = eager_wait_us - replay_us
  copy_us = 0.0 if writes_in_place else 2 * input_bytes / bandwidth_bytes_per_s * 1e6
  eager_us = compute_us + eager_wait_us
  graph_us = compute_us + replay_us + copy_us
  if saved_without_copy_us <= 0:
    break_even_bytes = 0.0
  elif writes_in_place:
    break_even_bytes = math.inf
  else:
    break_even_bytes = saved_without_copy_us * bandwidth_bytes_per_s / 2e6
  return GraphReplay(
    eager_us=eager_us,
    copy_us=copy_us,
    graph_us=graph_us,
    saved_us=eager_us - graph_us,
    saved_without_copy_us=saved_without_copy_us,
    replay_is_faster=graph_us < eager_us,
    break_even_bytes=break_even_bytes,
  )
