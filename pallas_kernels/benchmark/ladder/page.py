"""docs/gemm-ladder.md: each step's predicted time, and the times that docs/results holds."""

from collections.abc import Mapping
from typing import Any

import hw_profiles
from hw_profiles import GpuProfile, MatmulProblem
from pallas_kernels.benchmark import kept_pages
from pallas_kernels.benchmark.ladder import table
from pallas_kernels.benchmark.ladder.steps import steps
from pallas_kernels.benchmark.ops.matmul import Matmul
from pallas_kernels.benchmark.render import markdown

PAGE = kept_pages.page_path("gemm-ladder.md")
RESULTS = kept_pages.results_path("h200-gemm.json")
_PROFILE = "h200_sxm"

_HEAD = """# A matmul, step by step

Written by `python -m pallas_kernels.benchmark.ladder --write`; not by hand. On a Hopper GPU
`pallas-bench --task=ladder` runs, checks and times the same steps;
`--results=docs/results/h200-gemm.json` keeps the times.

Predicted times are the planner's for an H200, as it is now; `docs/model-accuracy.md` says how far
its times are from measured ones. {measured}
"""
_NOTHING = "None were measured yet."
# A reader of both finds two times of one kernel.
_OTHER_SESSIONS = (
  "README.md's tables are of other sessions and commits: times are compared within one."
)


def text(results: Mapping[str, Any]) -> str:
  """The page, with the times of a results file's object."""
  profile = hw_profiles.get_profile(_PROFILE)
  assert isinstance(profile, GpuProfile)
  shape = Matmul.default_shape
  problem = MatmulProblem(shape.m, shape.k, shape.n)
  kept = {
    row["details"]["step"]: row
    for row in results["rows"]
    if (row["kernel"], row["shape"], row["dtype"]) == (table.KERNEL, str(shape), problem.dtype)
  }
  rows, used = [], []
  for step in steps():
    row, found = table.predicted(step, problem, profile), kept.get(step.name)
    if found is not None:
      row = table.measured(
        row,
        problem,
        measured_us=found["measured_us"],
        cublas_us=found["peers"]["xla"],
        check=found["check"],
      )
      used.append(found)
    rows.append(row)
  beside = sorted({found["peers"]["xla"] for found in used})
  block = table.block(
    rows, problem, profile, lines=tuple(table.cublas_line(time_us) for time_us in beside)
  )
  return f"{_HEAD.format(measured=_said(used))}\n{markdown.document((block,))}"


def _said(rows: list[Mapping[str, Any]]) -> str:
  """On what, and when, the times were measured."""
  if not rows:
    return _NOTHING
  facts = {
    (
      row["environment"]["device_kind"],
      row["environment"]["driver"],
      row["environment"]["jax"],
      str(row["environment"]["date"])[:10],
      _commit(row["environment"]["git_commit"]),
    )
    for row in rows
  }
  measured = " ".join(
    f"Measured on one {device}, driver {driver}, jax {jax}, {date}, {commit}."
    for device, driver, jax, date, commit in sorted(facts)
  )
  return f"{measured} {_OTHER_SESSIONS}"


def _commit(name: str | None) -> str:
  return "at a commit that was not kept" if name is None else f"at commit {name[:7]}"


def current() -> str:
  """The page as it should be."""
  return text(kept_pages.read_results(RESULTS))
