"""Shared by all tests: a seeded generator, two CPU devices for sharding, no user cache of tiles.

With jaxlib 0.10 and no GPU XLA spends little on compiling: interpreted kernels are large
programs that run once. Later versions run the same tests as optimised code.
"""

import glob
import importlib.metadata
import os

# nobody's tuned tiles but the packaged ones
os.environ["PALLAS_KERNELS_TUNING_CACHE"] = ""
# quick: 161 tests of kernels took 153 s of processor time without the last two, 71 s with them
os.environ.setdefault(
  "XLA_FLAGS",
  " ".join(
    [
      "--xla_force_host_platform_device_count=2",
      *(
        "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
        for jaxlib in importlib.metadata.distributions(name="jaxlib")
        # later ones do not know the second
        if jaxlib.version.startswith("0.10.") and not glob.glob("/dev/nvidia[0-9]*")
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
