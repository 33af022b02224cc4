"""Shared by all tests: a seeded generator, two CPU devices for sharding, no user cache of tiles."""

import os

# nobody's tuned tiles but the packaged ones
os.environ["PALLAS_KERNELS_TUNING_CACHE"] = ""
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
# the Mosaic GPU interpreter blocks a thread of XLA's pool for each warpgroup: with a pool of
# two, as two cores give, three of them wait for ever
os.environ.setdefault("NPROC", "8")

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
  return np.random.default_rng(20260)
