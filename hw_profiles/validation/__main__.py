"""Prints the comparison of predicted and measured times; `--write` records it."""

import argparse

from hw_profiles.registry import list_profiles
from hw_profiles.validation.compare import comparisons, model_error, write_model_error


def main() -> None:
  """Runs the comparison for every profile."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--write", action="store_true", help="record the errors in the data files")
  arguments = parser.parse_args()
  for profile in list_profiles():
    print(f"\n{profile}")
    for row in comparisons(profile):
      problem = row.problem
      shape = f"{problem.batch} x " if problem.batch > 1 else ""
      shape += f"{problem.m} x {problem.k} x {problem.n}"
      print(
        f"  {shape:24} {problem.dtype:9} measured {row.measured_us:9.1f} us, predicted"
        f" {row.predicted_us:9.1f} us ({100 * row.relative_error:+6.1f} %)  {row.bound:13}"
        f" {row.config.block_m}x{row.config.block_n}x{row.config.block_k}"
        f"/{row.config.num_stages}  {row.implementation} [{row.device}]"
      )
    error = model_error(profile)
    if error is not None:
      print(
        f"  median |error| {100 * error.median_absolute_relative_error:.1f} %, largest"
        f" {100 * error.largest_absolute_relative_error:.1f} %, {error.row_count} rows"
      )
    if arguments.write:
      write_model_error(profile)


if __name__ == "__main__":
  main()
