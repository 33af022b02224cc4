"""Shared by all tests: a seeded generator, two CPU devices for sharding, no user cache of tiles.

Without a GPU XLA spends little on compiling: interpreted kernels are large programs that
run once. With jaxlib 0.11 the same tests run as optimised code.
"""

import glob
import importlib.metadata
import os
import sys

# nobody's tuned tiles but the packaged ones
os.environ["PALLAS_KERNELS_TUNING_CACHE"] = ""
# Quick: 161 tests of kernels took 153 s of processor time without the last two, 71 s with them.
# LLVM modules cut for more threads than there are cores: 82 tests of 33 s took 27 with one.
os.environ.setdefault(
  "XLA_FLAGS",
  " ".join(
    [
      "--xla_force_host_platform_device_count=2",
      *(
        "--xla_backend_optimization_level=0"
        # later versions do not know these
        + (
          " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
          if jaxlib.version.startswith("0.10.")
          else ""
        )
        for jaxlib in importlib.metadata.distributions(name="jaxlib")
        if not jaxlib.version.startswith("0.11.") and not glob.glob("/dev/nvidia[0-9]*")
      ),
    ]
  ),
)
# the Mosaic GPU interpreter blocks a thread of XLA's pool for each warpgroup: with a pool of
# two, as two cores give, three of them wait for ever
os.environ.setdefault("NPROC", "8")

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
  return np.random.default_rng(20260)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
  """Names a failure at once: a run that is stopped has no summary."""
  # of several processes the one that collects the reports
  if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
    print(f"\nfailed: {report.nodeid} ({report.when})", file=sys.__stderr__, flush=True)
