"""Prints the comparison of predicted and measured times; `--write` records it."""

import argparse
import dataclasses
from typing import Any

from hw_profiles.registry import list_profiles
from hw_profiles.validation.compare import (
  comparisons,
  measured_ops,
  model_error,
  write_model_errors,
)


def _problem(problem: Any) -> str:
  """The fields of a problem that are not default."""
  return ", ".join(
    f"{field.name}={getattr(problem, field.name)}"
    for field in dataclasses.fields(problem)
    if field.default is dataclasses.MISSING or getattr(problem, field.name) != field.default
  )


def _print(op: str, profile: str) -> None:
  print(f"\n{op} on {profile}")
  for row in comparisons(op, profile):
    print(
      f"  {_problem(row.problem):42} measured {row.measured_us:9.1f} us, predicted"
      f" {row.predicted_us:9.1f} us ({100 * row.relative_error:+6.1f} %)  {row.bound:13}"
      f" {row.config.describe()}  {row.implementation} [{row.device}]"
    )
  error = model_error(op, profile)
  if error is not None:
    print(
      f"  median |error| {100 * error.median_absolute_relative_error:.1f} %, largest"
      f" {100 * error.largest_absolute_relative_error:.1f} %, {error.row_count} rows"
    )


def main() -> None:
  """Runs the comparison for every op and profile."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--write", action="store_true", help="record the errors")
  arguments = parser.parse_args()
  for op in measured_ops():
    for profile in list_profiles():
      _print(op, profile)
  if arguments.write:
    write_model_errors()


if __name__ == "__main__":
  main()
