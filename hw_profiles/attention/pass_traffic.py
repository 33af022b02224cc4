"""The traffic of a planned attention, its mask and heads counted."""

import math
from collections.abc import Iterable

from hw_profiles import dtypes
from hw_profiles.attention.passes import AttentionPass
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.attention.traffic import AttentionTraffic
from hw_profiles.capacity.buffers import Buffer

SCORE_BYTES = 4  # scores are float32


def passes_traffic(
  problem: AttentionProblem,
  passes: tuple[AttentionPass, ...],
  *,
  buffers: Iterable[Buffer],
  on_chip: tuple[str, ...],
) -> AttentionTraffic:
  """`AttentionTraffic` over all heads: each program streams the blocks it visits.

  Args:
    problem: What is computed.
    passes: Its kernels.
    buffers: What a program keeps: the working set is those in `on_chip`.
    on_chip: Memory spaces that count as working buffers.
  """
  streamed = sum(one.streamed_bytes for one in passes)
  once = sum(one.once_bytes for one in passes)
  written = _written_bytes(problem)
  pairs = problem.batch * problem.heads * problem.seq_q * problem.seq_kv
  first = passes[0]
  heads = problem.batch * (problem.heads if first.name == "forward" else problem.key_heads)
  total = streamed + once
  return AttentionTraffic(
    working_set_bytes=sum(x.own_bytes for x in buffers if x.space in on_chip),
    q_read_bytes=once - written,
    kv_read_bytes=streamed,
    o_write_bytes=written,
    total_bytes=total,
    sweeps=sum(one.visits.blocks for one in passes),
    state_updates=sum(one.visits.total for one in passes),
    intensity=problem.flops / total if total else 0.0,
    grid=(math.ceil(first.visits.blocks / heads) if heads else 0, heads),
    required_bytes=problem.once_through_bytes,
    score_bytes=problem.seq_q * problem.seq_kv * SCORE_BYTES,
    unfused_intermediate_bytes=4 * pairs * SCORE_BYTES,
  )


def _written_bytes(problem: AttentionProblem) -> int:
  if not problem.backward:
    return problem.output_bytes
  size = dtypes.size_bytes(problem.dtype)
  gradients = problem.batch * problem.seq_q * problem.heads * problem.head_dim * size
  return gradients + problem.key_value_bytes
