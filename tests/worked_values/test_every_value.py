"""Every value that can be computed is, by one module."""

import collections
import importlib
import pathlib

import golden

MODULES = sorted(
  path.stem
  for path in pathlib.Path(__file__).parent.glob("test_*.py")
  if path.stem != pathlib.Path(__file__).stem
)


def test_every_recomputable_value_is_computed_by_one_module():
  claims = collections.Counter(
    name for module in MODULES for name in importlib.import_module(module).COMPUTED
  )
  assert sorted(golden.RECOMPUTABLE - set(claims)) == []
  assert sorted(set(claims) - golden.RECOMPUTABLE) == []
  assert {name for name, count in claims.items() if count > 1} == set()
