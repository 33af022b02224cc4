"""Shared by all tests: a seeded generator, and two CPU devices so that sharding is real."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
  return np.random.default_rng(20260)
