"""The four formats of one report."""

import csv
import io
import json
import math

import numpy as np
import pytest

from pallas_kernels.benchmark import rows
from pallas_kernels.benchmark.render import render

# The order of the schema; more may follow.
SCHEMA_FIELDS = [
  "kernel",
  "shape",
  "dtype",
  "tile",
  "profile",
  "vendor",
  "fits",
  "binding",
  "buffers",
  "working_set_bytes",
  "traffic_bytes",
  "intensity_flop_per_byte",
  "resident_blocks",
  "predicted_us",
  "bound",
  "measured_us",
  "implementation",
  "max_ulp",
  "relative_error",
  "error_bound",
  "check",
  "arguments",
]


def make_report():
  first = rows.Row(
    kernel="matmul",
    shape="m=1,k=2,n=3",
    dtype="bfloat16",
    tile="block_m=64,block_n=64,block_k=32,num_stages=1",
    profile="h100_sxm",
    vendor="nvidia",
    fits=True,
    binding=("registers", "shared_memory"),
    buffers=({"name": "stages", "needed_bytes": 8192, "available_bytes": 232448},),
    working_set_bytes=24576,
    traffic_bytes=np.int64(3246391296),
    intensity_flop_per_byte=31.75,
    resident_blocks=4,
    predicted_us=1234.5,
    bound="memory",
    max_ulp=np.float64(0.5),
    check=rows.PASSED,
    arguments='pallas-bench --task=plan --note="a,b"',
    notes=("one | two", 'says "three"\nand four'),
  )
  second = rows.Row(
    kernel="matmul",
    shape="m=1,k=2,n=3",
    dtype="bfloat16",
    max_ulp=math.inf,
    relative_error=math.nan,
    check=rows.FAILED,
    details={"times_us": {"hbm": 1.5}},
  )
  block = rows.Block(
    title="matmul a_b",
    header=("tile", "predicted us"),
    cells=(("64x64x32 | *", "1.5"), ("128x128x32", "1000.25")),
    numeric=frozenset({"predicted us"}),
    lines=("a `note` <here>",),
  )
  environment = {"jax": "0.10.2", "device_kind": "cpu", "driver": None, "date": "2026-01-02"}
  return rows.Report(environment=environment, rows=(first, second), blocks=(block,))


def test_json_has_the_schema_and_rows_in_its_order():
  document = json.loads(render(make_report(), "json"))
  assert list(document) == ["schema", "environment", "rows"]
  assert document["schema"] == 1
  assert document["environment"]["driver"] is None
  for row in document["rows"]:
    assert list(row)[: len(SCHEMA_FIELDS)] == SCHEMA_FIELDS
  first, second = document["rows"]
  assert first["binding"] == ["registers", "shared_memory"]
  assert first["traffic_bytes"] == 3246391296
  assert first["measured_us"] is None
  assert second["times_us"] == {"hbm": 1.5}


def test_json_keeps_what_is_not_finite_apart_from_what_is_empty():
  second = json.loads(render(make_report(), "json"))["rows"][1]
  assert float(second["max_ulp"]) == math.inf
  assert math.isnan(float(second["relative_error"]))
  assert second["error_bound"] is None


def test_csv_reads_back_to_the_rows_of_the_json():
  report = make_report()
  expected = json.loads(render(report, "json"))["rows"]
  read = list(csv.DictReader(io.StringIO(render(report, "csv"))))
  assert len(read) == len(expected)
  for cells, row in zip(read, expected, strict=True):
    assert set(row) <= set(cells)
    for name, value in row.items():
      text = cells[name]
      if value is None:
        assert text == ""
      elif isinstance(value, str):
        assert text == value
      else:
        assert json.loads(text) == value


def read_pipe_table(text):
  table = [line for line in text.splitlines() if line.startswith("|")]
  cells = []
  for line in table:
    row, cell, escaped = [], "", False
    for character in line[1:]:
      if escaped or character not in "\\|":
        cell, escaped = cell + character, False
      elif character == "\\":
        escaped = True
      else:
        row.append(cell.strip())
        cell = ""
    cells.append(tuple(row))
  return cells


def test_markdown_table_reads_back_to_the_cells_of_the_block():
  report = make_report()
  header, marks, *cells = read_pipe_table(render(report, "markdown"))
  assert header == report.blocks[0].header
  assert marks == ("---", "---:")
  assert tuple(cells) == report.blocks[0].cells


def test_table_aligns_its_columns():
  text = render(make_report(), "table")
  lines = text.splitlines()
  start = lines.index("matmul a_b")
  assert lines[start + 1 : start + 5] == [
    "tile          predicted us",
    "------------  ------------",
    "64x64x32 | *           1.5",
    "128x128x32         1000.25",
  ]
  assert text.endswith("\n")
  assert "jax 0.10.2" in lines[0]


@pytest.mark.parametrize("style", ["json", "csv", "table", "markdown"])
def test_every_format_ends_in_one_newline(style):
  text = render(make_report(), style)
  assert text.endswith("\n")
  assert not text.endswith("\n\n")


def test_group_lines_stand_above_their_rows():
  block = rows.Block(
    header=("tile", "us"),
    cells=(("a", "1"), ("b", "2"), ("c", "3")),
    numeric=frozenset({"us"}),
    groups={0: "first: a long line", 2: "second"},
  )
  report = rows.Report(environment={}, rows=(), blocks=(block,))
  lines = render(report, "table").splitlines()
  assert lines[-7:] == [
    "tile  us",
    "----  --",
    "first: a long line",
    "a      1",
    "b      2",
    "second",
    "c      3",
  ]
  cells = read_pipe_table(render(report, "markdown"))
  assert [len(row) for row in cells] == [2] * 7
  assert cells[2] == ("**first: a long line**", "")
  assert cells[5] == ("**second**", "")
