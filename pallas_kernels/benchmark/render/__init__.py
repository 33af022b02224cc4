"""A report as text: `render(report, "json")` and the like."""

from pallas_kernels.benchmark.render import comma_separated, json_object, markdown, table
from pallas_kernels.benchmark.rows import Report

_RENDERERS = {
  "table": table.render,
  "json": json_object.render,
  "csv": comma_separated.render,
  "markdown": markdown.render,
}


def render(report: Report, style: str) -> str:
  """The report in one of the formats of `--format`, ending in a newline."""
  return _RENDERERS[style](report)
