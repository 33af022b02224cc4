"""`--task=mlir`: what a tile becomes, stage by stage, for either vendor, without its device.

NVIDIA: Mosaic GPU as Pallas writes it, with its layouts, and lowered to NVVM; or
Triton IR. Ascend: Triton IR, simplified, linalg, the memory-planned HIVM program.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import hw_profiles
from pallas_kernels.benchmark import (
  cells,
  commands,
  compiling,
  environment,
  lowered,
  output,
  stages,
)
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.rows import NOT_RUN, Block, Report, Written
from pallas_kernels.benchmark.workload import Workload
from pallas_kernels.lowering.compile_pool import CompilePool
from pallas_kernels.lowering.compile_task import Compiled

COUNTED = (
  "Counts are of the lowered text: what stands in a loop counts once. Registers and spills are "
  "known after ptxas alone, which needs a GPU's plugin of JAX."
)
_TRITON_COUNTED = ("tt.dot", "tt.load", "tt.store", "tt.reduce")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MlirRow(Written):
  """One tile on one device.

  Attributes:
    kernel: The op.
    shape: Sizes as `--shape` takes them.
    dtype: Of the operands.
    tile: As `--tile` takes it.
    profile: The device.
    vendor: Its vendor.
    compiler: What lowered it.
    outcome: "accepted", "too large", "refused", "failed" or "not available".
    reason: Why it was not accepted.
    operations: What is in the last stage, by kind.
    stages: The text of each stage, or the file that it was written to.
    arguments: A command line that gives this row again.
    notes: Anything else a reader must know.
  """

  kernel: str
  shape: str
  dtype: str
  tile: str
  profile: str
  vendor: str
  compiler: str
  outcome: str
  reason: str | None
  operations: Mapping[str, Any]
  stages: Mapping[str, str]
  arguments: str
  notes: tuple[str, ...]
  check: str = NOT_RUN


def run(options: Options) -> Report:
  """Lowers every tile for every device, and shows or writes the stages.

  Raises:
    UsageError: a stage is none of what is lowered, or a file cannot be written.
  """
  profiles = options.profiles or lowered.DEFAULT_PROFILES
  cases = [
    (workload, tile, profile)
    for workload in options.workloads
    for tile in (workload.tiles or workload.op.default_tiles[:1])
    for profile in profiles
  ]
  tasks = [
    compiling.task(options, workload, tile, profile, texts=True)
    for workload, tile, profile in cases
  ]
  stages.check(options.stages, tasks, passes=options.passes)
  with CompilePool(options.jobs) as pool:
    answers = compiling.compiled(pool, tasks, "lowerings")
  shown = [_chosen(options, answer) for answer in answers]
  not_made = stages.not_made(options.stages, answers)
  if options.folder is not None:
    shown = [
      {
        name: output.write_into(text, compiling.file_name(answer, name), options.folder)
        for name, text in texts.items()
      }
      for answer, texts in zip(answers, shown, strict=True)
    ]
  rows = tuple(
    _row(options, workload, answer, texts)
    for (workload, _, _), answer, texts in zip(cases, answers, shown, strict=True)
  )
  texts_first = [] if options.folder is not None else _text_blocks(answers, shown)
  return Report(
    environment=environment.describe(with_device=False),
    rows=rows,
    blocks=(*texts_first, _summary(options, answers, shown, not_made)),
  )


def _chosen(options: Options, answer: Compiled) -> dict[str, str]:
  return {
    name: text
    for name, text in answer.stages.items()
    if not options.stages or stages.matches(name, options.stages)
  }


def counts(answer: Compiled) -> dict[str, Any]:
  """What is in the last stage, by kind."""
  if answer.mosaic is not None:
    return dataclasses.asdict(answer.mosaic)
  if answer.operations is not None:
    return dataclasses.asdict(answer.operations)
  text = "\n".join(answer.stages.values())
  return {name: len(re.findall(rf"\b{re.escape(name)}\b", text)) for name in _TRITON_COUNTED}


def sentence(answer: Compiled) -> str:
  """The same for people."""
  if answer.mosaic is not None:
    return compiling.mosaic_sentence(answer.mosaic)
  if answer.ascend is not None:
    return compiling.ascend_sentence(answer)
  if not answer.accepted:
    return "-"
  return ", ".join(f"{name} {count}" for name, count in counts(answer).items())


def _row(
  options: Options, workload: Workload, answer: Compiled, stages: Mapping[str, str]
) -> MlirRow:
  tile, profile = answer.task.config, answer.task.profile
  return MlirRow(
    kernel=workload.op.name,
    shape=str(workload.shape),
    dtype=workload.dtype,
    tile=tile.describe(),
    profile=profile,
    vendor=hw_profiles.get_profile(profile).vendor,
    compiler=answer.compiler,
    outcome=answer.outcome,
    reason=answer.reason or None,
    operations=counts(answer),
    stages=stages,
    arguments=commands.rerun(
      options, workload, tile=tile, profile=profile, implementation=options.implementation
    ),
    notes=(answer.note,) if answer.note else (),
  )


def _label(answer: Compiled) -> str:
  return f"{answer.task.op} {cells.short_tile(answer.task.config)} on {answer.task.profile}"


def _text_blocks(answers: list[Compiled], shown: list[dict[str, str]]) -> list[Block]:
  return [
    Block(title=f"{_label(answer)}: {name}", text=tuple(text.rstrip().splitlines()))
    for answer, texts in zip(answers, shown, strict=True)
    for name, text in texts.items()
  ]


def _summary(
  options: Options, answers: list[Compiled], shown: list[dict[str, str]], not_made: list[str]
) -> Block:
  lines = compiling.report_reasons(answers, {}, _label) + not_made
  if options.folder is not None:
    count = sum(map(len, shown))
    lines.append(f"{count} stages written to {options.folder}")
  return Block(
    title="What was lowered",
    header=("op", "tile", "profile", "compiler", "outcome", "stages", "operations"),
    cells=tuple(
      (
        answer.task.op,
        cells.short_tile(answer.task.config),
        answer.task.profile,
        answer.compiler,
        answer.outcome,
        str(len(answer.stages)),
        sentence(answer),
      )
      for answer in answers
    ),
    numeric=frozenset({"stages"}),
    lines=(COUNTED, *lines),
  )
