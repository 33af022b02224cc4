"""Prints the comparison of predicted and measured times; `--write` records it."""

import argparse
from collections import Counter

from hw_profiles.registry import list_profiles
from hw_profiles.validation.compare import Comparison, compared, model_accuracy, write_model_errors
from hw_profiles.validation.document import write_document
from hw_profiles.validation.measured import measured_ops, unused_rows


def _line(one: Comparison) -> str:
  row = one.row
  named = {**row.shape, **row.options}
  problem = ", ".join(f"{name}={value}" for name, value in named.items())
  tiles = " + ".join(f"{plan.schedule}/{plan.bound} {plan.config.describe()}" for plan in one.plans)
  return (
    f"  {problem} {row.dtype}: measured {row.measured_us:.1f} us, predicted"
    f" {one.predicted_us:.1f} us ({100 * one.relative_error:+.1f} %)  {tiles} "
    f" {row.implementation} [{row.device}]{' calibration' if one.calibrates else ''}"
  )


def _print(op: str, profile: str) -> None:
  found = compared(op, profile)
  if not found.comparisons:
    return
  print(f"\n{op} on {profile}")
  for one in found.comparisons:
    print(_line(one))
  error = model_accuracy(op, profile)
  if error is not None:
    print(
      f"  outside the calibration half: median |log2| {error.median_abs_log2:.2f}, 90th percentile"
      f" {error.p90_abs_log2:.2f}, {error.row_count} rows"
    )


def _print_skipped() -> None:
  skipped: Counter[str] = Counter()
  for op in measured_ops():
    for profile in list_profiles():
      skipped.update(compared(op, profile).skipped)
  print(f"\n{sum(skipped.values())} rows not compared")
  for reason, count in skipped.most_common():
    print(f"  {count:4} {reason}")
  print(f"{sum(entry.count for entry in unused_rows())} measurements not recorded")


def main() -> None:
  """Runs the comparison for every op and profile."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--write", action="store_true", help="record the errors")
  arguments = parser.parse_args()
  for op in measured_ops():
    for profile in list_profiles():
      _print(op, profile)
  _print_skipped()
  if arguments.write:
    write_model_errors()
    write_document()


if __name__ == "__main__":
  main()
