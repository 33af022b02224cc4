"""The tables of `--task=request`, for people."""

from collections.abc import Iterable, Sequence

from hw_profiles import HostTimes
from pallas_kernels.benchmark import cells, parsing
from pallas_kernels.benchmark.request.rows import (
  FUSED,
  GRAPH,
  LAUNCHED,
  SEPARATE,
  BucketRow,
  ProgramRow,
  StageRow,
)
from pallas_kernels.benchmark.rows import Block

_GIB = 1024**3

# What is said of the stages: those that take the largest share, and only where they take some.
_SAID_STAGES = 3
# Columns that hold words.
_WORDS = frozenset({"profile", "stage", "kernel", "shape", "bound", "products", "steps"})

NOT_PRICED = (
  "not priced: looking up embeddings, rotating positions, norms inside a head, writing keys and"
  " values into the cache, choosing the token, what a server does between steps"
)


def _numbers(header: Sequence[str]) -> frozenset[str]:
  """The columns that hold numbers."""
  return frozenset(header) - _WORDS


def _percent(share: float | None) -> str:
  return "-" if share is None else f"{100 * share:.1f}"


def summary(model: str, request: str, dtype: str, programs: Sequence[ProgramRow]) -> Block:
  """Every profile in a line: the fused program, and what separate products and launches cost."""
  by = {(row.profile, row.program, row.launch): row for row in programs}
  lines = [
    "first token: the prompt's pass, launched kernel by kernel; further token: a decode step"
    " launched so, or replayed as one graph; floor: a step's matrices, keys and values at the"
    " peak of memory",
  ]
  table = []
  for profile in dict.fromkeys(row.profile for row in programs):
    launched, graph = by[profile, FUSED, LAUNCHED], by[profile, FUSED, GRAPH]
    table.append(
      (
        profile,
        cells.milliseconds(launched.first_token_us, 1),
        cells.milliseconds(launched.token_us),
        cells.milliseconds(graph.token_us),
        cells.milliseconds(launched.token_floor_us),
        cells.milliseconds(launched.total_us, 1),
        cells.milliseconds(graph.total_us, 1),
        cells.milliseconds(by[profile, SEPARATE, LAUNCHED].total_us, 1),
        f"{launched.resident_bytes / _GIB:.1f}/{launched.memory_bytes / _GIB:.0f}",
      )
    )
    if launched.fits is False:
      lines.append(
        f"{profile}: the model and its cache need {launched.resident_bytes / _GIB:.1f} GiB, it has"
        f" {launched.memory_bytes / _GIB:.1f}: these are the times of a device that had room"
      )
    if launched.reason:
      lines.append(f"{profile}: no time: {launched.reason}")
  header = (
    "profile",
    "first token ms",
    "further token ms",
    "in a graph",
    "floor",
    "total ms",
    "in graphs",
    "separate products",
    "GiB needed/there",
  )
  return Block(
    title=f"request {request} of {model} {dtype}",
    header=header,
    cells=tuple(table),
    numeric=_numbers(header),
    lines=tuple(lines),
  )


def stages(profile: str, rows: Sequence[StageRow]) -> Block:
  """The fused program's kernels in both phases, and those that they stand for."""
  fused = [row for row in rows if row.program == FUSED]
  kept = {(row.phase, row.stage) for row in fused}
  replaced = [row for row in rows if (row.phase, row.stage) not in kept]
  shown = [*fused, *replaced]
  groups: dict[int, str] = {}
  for index, row in enumerate(shown):
    what = row.phase if row.program == FUSED else f"{row.phase}, with separate products"
    if not index or what != groups[max(groups)]:
      groups[index] = what
  header = (
    "stage",
    "kernel",
    "shape",
    "calls",
    "us a call",
    "total ms",
    "% of device",
    "bound",
    "at most x",
    "twice as fast saves ms",
    "of the request",
  )
  return Block(
    title=f"Stages on {profile}",
    header=header,
    cells=tuple(
      (
        row.stage,
        row.kernel,
        row.shape,
        f"{row.calls:,}",
        cells.number(row.call_us),
        cells.milliseconds(row.total_us),
        _percent(row.share),
        row.bound or "-",
        cells.number(row.request_bound, 3),
        cells.milliseconds(row.own_saved_us),
        cells.milliseconds(row.request_saved_us),
      )
      for row in shown
    ),
    numeric=_numbers(header),
    groups=groups,
    lines=(
      "at most x: how many times as fast the request is if the stage takes no time and nothing runs"
      " beside it (Amdahl); twice as fast saves: the calls by themselves, and of the request"
      " launched kernel by kernel, where the host may be what is waited for",
      *_largest(fused),
    ),
  )


def _largest(rows: Iterable[StageRow]) -> list[str]:
  """The stages that take most, in a sentence."""
  timed = sorted((row for row in rows if row.share), key=lambda row: -(row.share or 0.0))
  if not timed:
    return []
  said = [
    f"{row.phase} {row.stage} {100 * (row.share or 0.0):.0f} %" for row in timed[:_SAID_STAGES]
  ]
  return [f"most of the device's time: {', '.join(said)}"]


def programs(profile: str, rows: Sequence[ProgramRow]) -> Block:
  """Products fused or not, steps launched or replayed: the host's count and the device's."""
  lines = []
  fused = next(row for row in rows if (row.program, row.launch) == (FUSED, LAUNCHED))
  if fused.saved_by_part_us:
    parts = ", ".join(
      f"{name} {cells.milliseconds(us)}" for name, us in fused.saved_by_part_us.items()
    )
    lines.append(f"fusing saves of the device's work, ms: {parts}")
  if fused.token_us is not None and fused.largest_launch_us is not None:
    lines.append(_host_line(fused))
    saved_us = fused.graph_saved_us or 0.0
    lines.append(
      f"a graph {'saves' if saved_us >= 0 else 'costs'} {abs(saved_us):,.1f} us a step: the"
      f" submissions fall from {fused.submissions:,} to"
      f" {next(r.submissions for r in rows if (r.program, r.launch) == (FUSED, GRAPH)):,}, the"
      f" kernels stay {fused.kernels:,}"
    )
    floor = fused.token_floor_us / fused.token_us
    lines.append(
      f"a decode step reads {fused.decode_bytes / 1e9:,.2f} GB at least:"
      f" {cells.milliseconds(fused.token_floor_us)} ms at the peak of memory,"
      f" {100 * floor:.0f} % of a further token's time"
    )
  header = (
    "products",
    "steps",
    "submissions",
    "kernels",
    "device ms",
    "first token ms",
    "further token ms",
    "total ms",
  )
  return Block(
    title=f"Programs on {profile}",
    header=header,
    cells=tuple(
      (
        row.program,
        row.launch,
        f"{row.submissions:,}",
        f"{row.kernels:,}",
        cells.milliseconds(row.device_us),
        cells.milliseconds(row.first_token_us),
        cells.milliseconds(row.token_us, 3),
        cells.milliseconds(row.total_us),
      )
      for row in rows
    ),
    numeric=_numbers(header),
    lines=tuple(lines),
  )


def _host_line(row: ProgramRow) -> str:
  """Whether host or device is on the critical path of a decode step."""
  host, device = row.host_step_us, row.device_step_us
  assert host is not None
  assert device is not None
  assert row.largest_launch_us is not None
  return (
    f"critical path of a decode step: the {'host' if host > device else 'device'}"
    f" ({cells.milliseconds(device)} ms beside {cells.milliseconds(host)} ms of launches); a launch"
    f" that takes more than {row.largest_launch_us:,.1f} us holds it up"
  )


def buckets(rows: Sequence[BucketRow]) -> Block:
  """Prompts padded, or each length compiled."""
  first = rows[0]
  lengths = parsing.joined([f"{bucket:,}" for bucket in first.buckets], "and")
  header = (
    "profile",
    "tokens",
    "padded",
    "padded ms",
    "exact ms",
    "compiling ms",
    "even after",
    "exact from",
  )
  return Block(
    title=f"Prompts padded to {lengths}, or a program for each length",
    header=header,
    cells=tuple(
      (
        row.profile,
        f"{row.tokens:,}",
        f"{row.padded_tokens:,}",
        cells.milliseconds(row.bucketed_us),
        cells.milliseconds(row.exact_us),
        cells.milliseconds(row.compile_us, 0),
        cells.number(row.payback_repeats),
        "never" if row.exact_from is None else f"{row.exact_from:,}",
      )
      for row in rows
    ),
    numeric=_numbers(header),
    lines=(
      f"{first.request}, of {first.model} {first.dtype}: their first tokens, products fused; even"
      " after: repeats of these prompts that pay for compiling their lengths, where the buckets'"
      " programs are there; decode steps take lengths as an operand",
    ),
  )


def assumptions(host: HostTimes, rows: Sequence[StageRow]) -> Block:
  """What the times rest on; how far each op's model was from measurements."""
  lines = [
    "a call takes what --task=plan says of the planner's best tile (each row's arguments), its"
    " operands not in L2; the kernels here may be slower",
    f"the host: {host.launch_us:g} us to submit a kernel, {host.replay_us:g} to replay a graph,"
    f" {host.compile_ms:g} ms to compile a prompt length: assumptions (--host), of which no profile"
    " has a measured one; a call counts as one kernel, also where its parts are merged by a second",
    "a step starts when the token before it is there; decode attention is priced at the first and"
    " the last step, and the mean taken",
    NOT_PRICED,
  ]
  for profile in dict.fromkeys(row.profile for row in rows):
    errors: dict[str, float | None] = {}
    for row in rows:
      if row.profile == profile:
        errors[row.kernel] = row.model_error
    told = ", ".join(
      f"{kernel} {'never compared' if error is None else f'{100 * error:.0f} %'}"
      for kernel, error in errors.items()
    )
    lines.append(f"{profile}: median error of the models against measured times: {told}")
  return Block(title="What the times rest on", lines=tuple(lines))
