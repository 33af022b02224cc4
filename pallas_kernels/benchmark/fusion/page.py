"""docs/fusion-study.md: bytes, predicted times, and the times that docs/results holds."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import hw_profiles
from hw_profiles import GpuProfile
from pallas_kernels.benchmark import kept_pages
from pallas_kernels.benchmark.fusion import study
from pallas_kernels.benchmark.fusion.programs import PROGRAMS
from pallas_kernels.benchmark.render import markdown

PAGE = kept_pages.page_path("fusion-study.md")
RESULTS = kept_pages.results_path("h200-rowwise.json")
_PROFILE = "h200_sxm"

_HEAD = """# What fusion saves, and what it cannot

Written by `python -m pallas_kernels.benchmark.fusion --write`; not by hand. `pallas-bench
--task=fusion` runs and checks the same programs on the device that it finds; one of them alone with
`--program`, for example `--program='chain:12|3'`.

Predicted times are the planner's for an H200. {measured}
"""
_NOTHING = "None were measured yet."


def text(results: Mapping[str, Any]) -> str:
  """The page, with the times of a results file's object."""
  profile = hw_profiles.get_profile(_PROFILE)
  assert isinstance(profile, GpuProfile)
  kept = {
    row["details"]["program"]: row for row in results["rows"] if row["kernel"] == study.KERNEL
  }
  rows = [
    dataclasses.replace(study.predicted(program, profile), **_measured(kept.get(name)))
    for name, program in PROGRAMS.items()
  ]
  head = _HEAD.format(measured=_said(tuple(kept.values())))
  counted = {
    f"{row['side']} {row['dtype']} {row['layout']}": row["load_passes"] / row["loads"]
    for row in results.get("banks", {}).get("rows", ())
  }
  return f"{head}\n{markdown.document(study.blocks(rows, profile, counted=counted))}"


def _measured(row: Mapping[str, Any] | None) -> dict[str, Any]:
  if row is None:
    return {}
  return {"measured": study.measured_of(row), "check": row["check"]}


def _said(rows: tuple[Mapping[str, Any], ...]) -> str:
  """How the times were measured."""
  if not rows:
    return _NOTHING
  facts = {
    (
      row["environment"]["device_kind"],
      row["environment"]["driver"],
      row["environment"]["jax"],
      str(row["environment"]["date"])[:10],
      row["iterations"],
      "cold" if row["cold_l2"] else "warm",
    )
    for row in rows
  }
  return " ".join(
    f"Measured on one {device}, driver {driver}, jax {jax}, {date}: medians of {count} runs with a"
    f" {state} L2, kernels of a call added up."
    for device, driver, jax, date, count, state in sorted(facts)
  )


def current() -> str:
  """The page as it should be."""
  return text(kept_pages.read_results(RESULTS))
