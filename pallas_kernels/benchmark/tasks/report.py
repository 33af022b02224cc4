"""`--task=report`: saved outputs and results as one report, failures first. Loads no JAX.

A failed check of a file is a failed check of the report: its exit status is 1.
"""

import sys
from collections.abc import Sequence

from pallas_kernels.benchmark import environment
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.rows import Report
from pallas_kernels.benchmark.saved import blocks, read, summary


def run(options: Options) -> Report:
  """Reads every file before anything is shown.

  Raises:
    UsageError: a file holds something else; met by a pattern it is skipped, unless
      all are, or what it says of itself is wrong.
  """
  rows = _rows(options.inputs)
  failed = summary.failures(rows)
  ratios = summary.ratios(rows)
  shown = [blocks.checks(rows, failed), blocks.environments(rows)]
  if ratios:
    shown.append(blocks.ratios(ratios))
  return Report(
    environment=environment.describe(with_device=False),
    rows=(*failed, *ratios),
    blocks=(*shown, *blocks.kernels(rows), *blocks.requests(rows), *blocks.others(rows)),
  )


def _rows(inputs: Sequence[read.Input]) -> tuple[read.SavedRow, ...]:
  """The rows of all files; says on stderr which have none."""
  found: list[read.SavedRow] = []
  skipped = 0
  for one in inputs:
    try:
      found += read.rows(one.path)
    except read.OtherFileError as error:
      if not one.by_pattern:
        raise
      skipped += 1
      if sys.stderr is not None:  # closed: print() would take stdout
        print(f"pallas-bench: skipped: {error}", file=sys.stderr)
  if skipped == len(inputs):
    raise UsageError("--input: no file has rows; --format=json --output=FILE writes one that has")
  return tuple(found)
