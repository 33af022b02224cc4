"""Pages of docs made from docs/results and the models: where they lie, and their command."""

import argparse
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

_DOCS = pathlib.Path(__file__).parents[2] / "docs"


def page_path(name: str) -> pathlib.Path:
  """Where the page `name` is kept."""
  return _DOCS / name


def results_path(name: str) -> pathlib.Path:
  """Where the measurements called `name` are kept."""
  return _DOCS / "results" / name


def read_results(path: pathlib.Path) -> Mapping[str, Any]:
  """The document of measurements; one without rows where there is none."""
  if not path.exists():
    return {"rows": []}
  found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
  return found


def command(description: str | None, page: pathlib.Path, current: Callable[[], str]) -> None:
  """Prints the page as it should be; `--write` writes it.

  Args:
    description: What `--help` says.
    page: The page.
    current: Makes it.
  """
  parser = argparse.ArgumentParser(description=description)
  parser.add_argument("--write", action="store_true", help="write the page")
  arguments = parser.parse_args()
  if arguments.write:
    page.write_text(current(), encoding="utf-8")
  else:
    print(current(), end="")
