"""`--task=report`: saved outputs and results as one report, failures first. Loads no JAX.

A failed check of a file is a failed check of the report: its exit status is 1.
"""

from pallas_kernels.benchmark import environment
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.rows import Report
from pallas_kernels.benchmark.saved import blocks, read, summary


def run(options: Options) -> Report:
  """Reads every file before anything is shown.

  Raises:
    UsageError: a file holds something else.
  """
  rows = tuple(row for path in options.inputs for row in read.rows(path))
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
