"""The course texts' examples as a table, as JSON, as CSV."""

import csv
import io
import json

import pytest

from hw_profiles.examples.topics import TOPICS
from pallas_kernels.benchmark import main


def output(capsys, *arguments, status=0):
  assert main.main(["--task=examples", *arguments]) == status
  return capsys.readouterr().out


def test_json_has_every_value_with_what_the_text_prints(capsys):
  document = json.loads(output(capsys, "--format=json"))
  rows = {row["id"]: row for row in document["rows"]}
  assert len(rows) == len(document["rows"]) == 470
  assert {row["check"] for row in rows.values()} == {"passed"}
  ridge = rows["s000.roofline.v100_ridge"]
  assert (ridge["printed"], ridge["agrees"], ridge["unit"]) == (17, True, "FLOP/byte")
  assert ridge["ours"] == pytest.approx(15.7e12 / 900e9)
  assert ridge["inputs"] == {"peak": 15.7e12, "bw": 900e9}
  contradicted = {name for name, row in rows.items() if row["agrees"] is False}
  assert contradicted == {"s000.thread.outer_over_inner", "s004.ex5-3.t64.ai"}
  unprinted = rows["s000.gemm.flops_4096"]
  assert (unprinted["printed"], unprinted["agrees"]) == (None, None)
  assert unprinted["ours"] == 2 * 4096**3


def test_csv_has_the_same_rows(capsys):
  rows = list(csv.DictReader(io.StringIO(output(capsys, "--format=csv"))))
  assert len(rows) == 470
  by_id = {row["id"]: row for row in rows}
  assert by_id["s004.sm.base.binding"]["ours"] == "registers+shared"
  assert json.loads(by_id["s000.warp.origin_tid31"]["ours"]) == [24, 56]


def test_table_says_how_many_agree_and_which_do_not(capsys):
  text = " ".join(output(capsys).split())
  assert "470 values recomputed. The texts print 316 of them: 314 agree" in text
  assert "s000.thread.outer_over_inner" in text
  # printed with the text's digits, ours with ours
  assert "s004.little.coverage" in text
  assert "2.15 2.15193 x yes" in text


def test_markdown_escapes_the_bars_of_partitions(capsys):
  assert r"s004.ex5-4.chain[1\|2\|3]" in output(capsys, "--format=markdown")


def test_value_that_is_not_the_right_one_is_status_1(capsys, monkeypatch):
  name = "s004.amdahl.bound"
  wrong = {**TOPICS["runtime and requests"], name: lambda inputs: 1.26}
  monkeypatch.setitem(TOPICS, "runtime and requests", wrong)
  document = json.loads(output(capsys, "--format=json", status=1))
  failed = [row for row in document["rows"] if row["check"] == "failed"]
  assert [(row["id"], row["agrees"]) for row in failed] == [(name, False)]
