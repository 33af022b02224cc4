"""Compiles many tiles and records what the compiler planned; resumes where it stopped.

    python -m pallas_kernels.lowering.sweep --family matmul

`python -m hw_profiles.ascend.agreement` compares the record with the planner.
"""

import argparse
import concurrent.futures
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterable

from hw_profiles import AttentionConfig, MatmulConfig, RowConfig
from hw_profiles.ascend import CompileOptions, TritonProgram, find_compilers
from hw_profiles.ascend.agreement.rows import (
  Case,
  Outcome,
  PlanRow,
  append_rows,
  path_of,
  read_rows,
  recorded,
)
from pallas_kernels.lowering.sweep_cases import FAMILIES
from pallas_kernels.lowering.triton import triton_ir

# of a compiler: twenty times what a plan takes on an idle core
_TIME_LIMIT_S = 60.0
_CONFIGS = {
  "matmul": MatmulConfig,
  "gated_matmul": MatmulConfig,
  "flash_attention": AttentionConfig,
}


def _kernel(case: Case) -> tuple[object, ...]:
  """What decides the Triton kernel: cases that share it share its first stages."""
  config = {name: value for name, value in case.config.items() if name != "num_stages"}
  return case.op, case.shapes, case.dtype, tuple(sorted(config.items())), case.options


def compile_cases(cases: list[Case]) -> list[PlanRow]:
  """Compile cases of one kernel."""
  first = cases[0]
  config = _CONFIGS.get(first.op, RowConfig)(**first.config)
  try:
    (kernel,) = triton_ir(first.op, first.shapes, first.dtype, config, **first.options)
  except (ValueError, NotImplementedError) as error:
    reason = Outcome("not lowered", message=str(error).splitlines()[0][:160])
    return [PlanRow(case, reason) for case in cases]
  program = TritonProgram(kernel.ir, time_limit_s=_TIME_LIMIT_S)
  rows = []
  for case in cases:
    options = CompileOptions(
      multi_buffer=case.multi_buffer, sub_block=case.sub_block, time_limit_s=_TIME_LIMIT_S
    )

    def plan(case: Case = case, options: CompileOptions = options) -> object:
      return program.plan(case.target, options=options)

    rows.append(PlanRow(case, recorded(plan)))  # type: ignore[arg-type]
  return rows


def _groups(cases: Iterable[Case]) -> list[list[Case]]:
  ordered = sorted(cases, key=lambda case: str(_kernel(case)))
  return [list(group) for _, group in itertools.groupby(ordered, key=_kernel)]


def sweep(family: str, *, sample: int | None, jobs: int) -> None:
  """Compile what the record of a family lacks.

  Args:
    family: One of `FAMILIES`.
    sample: At most this many kernels, drawn with a fixed seed; None: all.
    jobs: Kernels compiled side by side.
  """
  path = path_of(family)
  done = {row.case for row in read_rows(path)}
  groups = _groups(case for case in FAMILIES[family]() if case not in done)
  random.Random(0).shuffle(groups)
  groups = groups[:sample]
  start, count = time.monotonic(), 0
  with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    for rows in pool.map(compile_cases, groups):
      append_rows(path, rows)
      count += 1
      spent = time.monotonic() - start
      left_s = spent / count * (len(groups) - count)
      print(
        f"\r{family}: {count} of {len(groups)} kernels, {spent / count:.2f} s each,"
        f" {left_s:.0f} s left",
        end="" if count < len(groups) else "\n",
        file=sys.stderr,
        flush=True,
      )


def _stop(*_: object) -> None:
  raise SystemExit("terminated: what was compiled is on record")


def main() -> None:
  """The program; where it is told to end, the compilers that run come to theirs first."""
  signal.signal(signal.SIGTERM, _stop)
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--family", action="append", choices=sorted(FAMILIES), help="default: all")
  parser.add_argument("--sample", type=int, help="at most so many kernels of each family")
  parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="kernels side by side")
  arguments = parser.parse_args()
  find_compilers()
  for family in arguments.family or FAMILIES:
    sweep(family, sample=arguments.sample, jobs=arguments.jobs)


if __name__ == "__main__":
  main()
