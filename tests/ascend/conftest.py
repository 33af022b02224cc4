"""Marks for what the `[ascend]` extra and one JAX version bring."""

import importlib.util

import pytest

from hw_profiles.ascend import why_missing


def _no_lowering() -> str:
  """Why this environment has no Triton IR without a GPU; empty where it has."""
  if importlib.util.find_spec("jax") is None:
    return "JAX is not installed"
  from pallas_kernels.lowering.jax_private import check_jax

  try:
    check_jax()
  except NotImplementedError as error:
    return str(error)
  return ""


def pytest_configure(config):
  config.addinivalue_line("markers", "lowering: needs a JAX version with a route to Triton IR")
  config.addinivalue_line("markers", "compilers: needs the compilers of the [ascend] extra")


def pytest_collection_modifyitems(items):
  reasons = {"lowering": _no_lowering(), "compilers": why_missing()}
  for item in items:
    for mark, reason in reasons.items():
      if reason and item.get_closest_marker(mark):
        item.add_marker(pytest.mark.skip(reason=reason))
