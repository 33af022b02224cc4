"""The tasks. Each is a module with `run(options) -> Report`, loaded when asked for."""

import importlib

from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.rows import Report


def perform(options: Options) -> Report:
  """Runs the task that the options name.

  The module is imported here and not above: `plan` must start without loading JAX.
  """
  module = importlib.import_module(f"{__name__}.{options.task}")
  report: Report = module.run(options)
  return report
