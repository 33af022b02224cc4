"""`--format=csv`: the rows of the JSON object, one line each.

Text and numbers stand as they are, an empty cell is null; lists, objects and
booleans are JSON inside their cell. The environment is not in it.
"""

import csv
import io
import json
from typing import Any

from pallas_kernels.benchmark import rows


def render(report: rows.Report) -> str:
  """A header line and a line a row (RFC 4180, with plain newlines)."""
  records = [row.as_dict() for row in report.rows]
  header = list(dict.fromkeys(name for record in records for name in record))
  text = io.StringIO()
  writer = csv.writer(text, lineterminator="\n")
  writer.writerow(header)
  for record in records:
    writer.writerow([_cell(record.get(name)) for name in header])
  return text.getvalue()


def _cell(value: Any) -> str:
  if value is None:
    return ""
  if isinstance(value, str):
    return value
  return json.dumps(value, allow_nan=False, ensure_ascii=False)
