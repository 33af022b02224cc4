"""`--format=json`: {"schema", "environment", "rows"}."""

import json

from pallas_kernels.benchmark import rows
from pallas_kernels.benchmark.plain_values import SCHEMA, plain


def render(report: rows.Report) -> str:
  """One JSON object; an empty field is null."""
  document = {
    "schema": SCHEMA,
    "environment": plain(report.environment),
    "rows": [row.as_dict() for row in report.rows],
  }
  return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
