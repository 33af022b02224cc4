"""A report as text: `render(report, "json")` and the like."""

from pallas_kernels.benchmark.render import (
  comma_separated,
  json_object,
  markdown,
  table,
  terminal,
)
from pallas_kernels.benchmark.rows import Report

_RENDERERS = {
  "table": table.render,
  "json": json_object.render,
  "csv": comma_separated.render,
  "markdown": markdown.render,
}

# A report for a document, or for a person in front of it.
_UNASKED = "markdown"


def render_unasked(report: Report, *, to_file: bool) -> str:
  """The report of `--task=report` without `--format`: tables on a terminal, else markdown."""
  if not to_file and terminal.is_wanted():
    return terminal.render(report)
  return _RENDERERS[_UNASKED](report)


def render(report: Report, style: str) -> str:
  """The report in one of the formats of `--format`, ending in a newline."""
  return _RENDERERS[style](report)
