"""`--task=report`: saved files as one report, and what a wrong file is told."""

import json
import pathlib
import statistics

import pytest

from pallas_kernels.benchmark import flags, main, render
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.render import terminal
from pallas_kernels.benchmark.rows import Block, Report
from pallas_kernels.benchmark.saved import read, summary

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"

ENVIRONMENT = {
  "device_kind": "NVIDIA H200",
  "driver": "580",
  "jax": "0.11.2",
  "python": "3.12.3",
  "git_commit": "0123456789abcdef",
  "git_modified": False,
  "date": "2026-12-01T10:00:00+00:00",
}


def output_row(implementation, measured_us, **fields):
  """A row as --task=run writes it."""
  return {
    "kernel": "matmul",
    "shape": "m=64,k=64,n=64",
    "dtype": "bfloat16",
    "implementation": implementation,
    "measured_us": measured_us,
    "check": "passed",
    "arguments": "pallas-bench --task=run --kernel=matmul --shape=m=64,k=64,n=64 --bias"
    " --iterations=5",
    **fields,
  }


def save(path, *rows, **document):
  whole = {"schema": 1, "environment": ENVIRONMENT, "rows": list(rows), **document}
  path.write_text(json.dumps(whole), encoding="utf-8")
  return str(path)


def report(capsys, *files, arguments=(), status=0):
  capsys.readouterr()
  assert main.main(["--task=report", *(f"--input={file}" for file in files), *arguments]) == status
  return capsys.readouterr().out


# --- what is read


def test_a_peer_of_a_run_stands_beside_the_kernels_of_the_same_problem(tmp_path):
  path = save(
    tmp_path / "run.json",
    output_row("mosaic_gpu", 10.0, predicted_us=8.0),
    output_row("triton", 20.0),
    output_row("peer:xla", 15.0),
    output_row("mosaic_gpu", 5.0, dtype="float16"),
  )
  first, second, other = read.rows(path)
  assert (first.peers, second.peers, other.peers) == ({"xla": 15.0}, {"xla": 15.0}, {})
  assert (first.ratios, second.ratios) == ({"xla": 1.5}, {"xla": 0.75})
  assert first.measured_to_predicted == 1.25
  assert first.problem == "m=64,k=64,n=64 bfloat16 --bias"
  assert first.profile == "NVIDIA H200"


def test_results_have_their_own_environments_and_options():
  rows = read.rows(str(RESULTS / "h200-rowwise.json"))
  kept = json.loads((RESULTS / "h200-rowwise.json").read_text(encoding="utf-8"))["rows"]
  assert len(rows) == len(kept)
  for row, of in zip(rows, kept, strict=True):
    assert (row.measured_us, row.environment) == (of["measured_us"], of["environment"])
    assert set(row.ratios) == set(of["ratios"])
    for peer, ratio in row.ratios.items():
      assert ratio == pytest.approx(of["ratios"][peer], abs=6e-5)  # kept to four decimals
    assert row.kernel == of["kernel"] + (" --backward" if "--backward" in of["options"] else "")
    assert ("cold L2" in row.problem) == of["cold_l2"]


def test_geometric_means_are_of_the_rows_kept():
  path = str(RESULTS / "h200-attention.json")
  found = {(row.kernel, row.against): row for row in summary.ratios(read.rows(path))}
  kept = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["rows"]
  decode = [row for row in kept if row["kernel"] == "decode_attention"]
  for peer in ("cudnn", "fa3", "tokamax"):
    values = [row["peers"][peer] / row["measured_us"] for row in decode]
    row = found["decode_attention", peer]
    assert row.rows == len(values)
    assert row.geometric_mean == pytest.approx(statistics.geometric_mean(values))
    assert (row.least, row.most) == (min(values), max(values))
    assert row.above_one == sum(value > 1 for value in values)
  best = [min(row["peers"].values()) / row["measured_us"] for row in decode]
  row = found["decode_attention", summary.BEST_PEER]
  assert row.geometric_mean == pytest.approx(statistics.geometric_mean(best))
  # gradients have no plan of their own time
  assert ("flash_attention", summary.PREDICTED) in found
  assert ("flash_attention --backward", summary.PREDICTED) not in found


def test_a_yardstick_is_no_rival(tmp_path):
  path = save(
    tmp_path / "r.json",
    output_row("triton", 10.0, peers={"stream": 5.0, "xla": 20.0}),
    output_row("triton", 10.0, peers={"xla": 30.0}, dtype="float16"),
  )
  found = {row.against: row for row in summary.ratios(read.rows(path))}
  assert set(found) == {"stream", "xla"}
  assert found["xla"].geometric_mean == pytest.approx(6**0.5)


# --- what is shown


def test_failed_checks_come_first_and_fail_the_report(tmp_path, capsys):
  bad = output_row(
    "triton", None, check="failed", worst_bound_fraction=1.75, notes=["element [0, 3]"]
  )
  one = save(tmp_path / "one.json", output_row("triton", 10.0), bad)
  two = save(tmp_path / "two.json", output_row("triton", 12.0))
  text = report(capsys, one, two, status=1)
  assert text.index("### Checks that failed: 1") < text.index("### Where the rows are from")
  assert "error/bound 1.75 | element [0, 3]" in text
  assert "- 3 rows: 2 passed, 1 failed" in text
  assert "- again: pallas-bench --task=run --kernel=matmul" in text
  assert "0123456789ab |" in text
  document = json.loads(report(capsys, one, two, arguments=["--format=json"], status=1))
  (failed,) = (row for row in document["rows"] if row["kind"] == "failed")
  assert (failed["file"], failed["check"]) == (one, "failed")


def test_a_peer_that_differs_is_no_failure(tmp_path, capsys):
  path = save(
    tmp_path / "r.json",
    output_row("triton", 10.0),
    output_row("peer:xla", 20.0, check="differs"),
  )
  text = report(capsys, path)
  assert "### No check failed" in text
  assert "- 2 rows: 1 passed, 1 differs" in text


def test_a_kernels_table_has_the_columns_that_rows_fill(tmp_path, capsys):
  path = save(
    tmp_path / "plan.json",
    output_row(None, None, predicted_us=3.0, profile="h200_sxm", check="not run"),
    output_row(None, None, profile="v100_sxm2", reason="no room", check="not run"),
  )
  text = report(capsys, path)
  assert "| problem | on | predicted us | check | said of it |" in text
  assert "v100\\_sxm2 | - | not run | no room |" in text
  assert "### Ratios" not in text


@pytest.mark.parametrize(
  "arguments",
  [
    ["--task=plan", "--profile=rtx_pro_6000", "--tile=block_m=64,block_n=64,block_k=32"],
    ["--task=examples"],
    [
      "--task=request",
      "--model=layers=1,hidden=64,ffn=64,heads=1",
      "--request=prompt=8,output=2",
      "--profile=rtx_pro_6000",
    ],
  ],
)
def test_outputs_of_other_tasks_are_read(arguments, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert main.main([*arguments, "--format=json", "--output=saved.json"]) == 0
  text = report(capsys, "saved.json")
  expected = {
    "--task=plan": "### matmul (saved.json)",
    "--task=examples": "| saved.json | other | 470 |",
    "--task=request": "| prompt=8,output=2 | layers=1,hidden=64,ffn=64,heads=1 | bfloat16 |",
  }
  assert expected[arguments[0]] in text


def test_what_is_measured_is_reported_whole(capsys):
  text = report(capsys, RESULTS / "h200-*[mne].json", arguments=["--format=table"])
  assert "docs/results/h200-gemm.json" in text
  assert "docs/results/h200-rowwise.json" in text
  assert "Rows without a time" not in text


# --- files that hold something else


@pytest.mark.parametrize(
  ("text", "said"),
  [
    ("", "line 1 column 1: not JSON"),
    ("[" * 200_000, "nests deeper than any output"),
    (f'{{"schema": {"9" * 5000}}}', "Exceeds the limit"),
    (
      f'{{"schema": 1, "environment": {{}}, "rows": [{{"measured_us": {"9" * 400}}}]}}',
      "row 0: measured_us=" + "9" * 60 + ": expected a time above 0, or null",
    ),
    (
      '{"schema": 1, "environment": {}, "rows": [{"kind": "program", "token_us": true}]}',
      "row 0: token_us=True: expected a time above 0, or null",
    ),
    (
      '{"schema": 1, "environment": {}, "rows": [{"implementation": 3}]}',
      "row 0: implementation=3: expected a text, or null",
    ),
    (
      '{"schema": 1, "environment": {}, "rows": [{"tile": ["x"], "measured_us": 1}]}',
      "row 0: tile=['x']: expected a text, or null",
    ),
    ("{", "line 1 column 2: not JSON"),
    ("[]", "holds a list, expected an object with schema and rows"),
    ("{}", "has no schema, expected 1: is it an output of --format=json?"),
    ('{"schema": 2, "rows": []}', "schema 2: this program reads 1"),
    ('{"schema": "1", "rows": []}', "schema '1': this program reads 1"),
    ('{"schema": true, "rows": []}', "schema True: this program reads 1"),
    ('{"schema": 1}', "rows: expected a list, got nothing"),
    ('{"schema": 1, "rows": {}}', "rows: expected a list, got an object"),
    ('{"schema": 1, "environment": {}, "rows": [3]}', "row 0: expected an object, got a number"),
    ('{"schema": 1, "rows": [{}]}', "row 0: environment: neither the row nor the file has one"),
    (
      '{"schema": 1, "environment": {}, "rows": [{}, {"measured_us": "fast"}]}',
      "row 1: measured_us='fast': expected a time above 0, or null",
    ),
    (
      '{"schema": 1, "environment": {}, "rows": [{"measured_us": 0}]}',
      "row 0: measured_us=0: expected a time above 0",
    ),
    (
      '{"schema": 1, "environment": {}, "rows": [{"peers": {"xla": true}}]}',
      "row 0: peers.xla=True: expected a time above 0",
    ),
    (
      '{"schema": 1, "environment": {}, "rows": [{"peers": 3}]}',
      "row 0: peers: expected an object, got a number",
    ),
    (
      '{"schema": 1, "environment": {}, "rows": [{"check": "fine"}]}',
      "row 0: check='fine': expected one of passed, failed, not run, differs",
    ),
  ],
)
def test_a_file_of_something_else_is_named_with_the_place(text, said, tmp_path, capsys):
  path = tmp_path / "other.json"
  path.write_text(text, encoding="utf-8")
  earlier = tmp_path / "report.md"
  earlier.write_text("earlier")
  assert main.main(["--task=report", f"--input={path}", f"--output={earlier}"]) == 2
  assert f"--input={path}: {said}" in capsys.readouterr().err
  assert earlier.read_text() == "earlier"


def test_a_file_that_cannot_be_read_is_named(tmp_path, capsys):
  assert main.main(["--task=report", f"--input={tmp_path}/none.json"]) == 2
  assert "none.json: No such file or directory" in capsys.readouterr().err
  (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
  assert main.main(["--task=report", f"--input={tmp_path}/bytes.json"]) == 2
  assert "utf-8" in capsys.readouterr().err


def test_no_file_is_an_error_and_a_pattern_needs_one(tmp_path):
  with pytest.raises(UsageError, match=r"name at least one, for example --input=compare\.json"):
    flags.parse(["--task=report"])
  with pytest.raises(UsageError, match=r"x\*\.json: no file is so called"):
    flags.parse(["--task=report", f"--input={tmp_path}/x*.json"])
  with pytest.raises(UsageError, match="--input=: expected the name of a file"):
    flags.parse(["--task=report", "--input="])
  with pytest.raises(UsageError, match="--input is not read by --task=plan, only by --task=report"):
    flags.parse(["--task=plan", "--input=x.json"])
  with pytest.raises(UsageError, match="--profile is not read by --task=report"):
    flags.parse(["--task=report", "--input=x.json", "--profile=h100"])


def test_a_pattern_is_its_files_each_once(tmp_path):
  for name in ("b.json", "a.json", "[c].json"):
    save(tmp_path / name)
  texts = [f"{tmp_path}/?.json", f"{tmp_path}/a.json", f"{tmp_path}/[c].json"]
  options = flags.parse(["--task=report", *(f"--input={text}" for text in texts)])
  found = [(pathlib.Path(one.path).name, one.by_pattern) for one in options.inputs]
  # what is named by itself has to hold rows
  assert found == [("a.json", False), ("b.json", True), ("[c].json", False)]


def test_what_holds_no_rows_is_skipped_where_a_pattern_met_it(tmp_path, capsys):
  save(tmp_path / "a.json", output_row("triton", 10.0))
  (tmp_path / "b.json").write_text('{"what": "notes"}')
  (tmp_path / "c.json").write_text("[]")
  (tmp_path / "d.json").mkdir()
  assert main.main(["--task=report", f"--input={tmp_path}/*.json"]) == 0
  captured = capsys.readouterr()
  assert "1 rows: 1 passed" in captured.out
  lines = captured.err.splitlines()
  for name, said in (("b", "has no schema"), ("c", "holds a list"), ("d", "is a folder")):
    start = f"pallas-bench: skipped: --input={tmp_path}/{name}.json: {said}"
    assert len([line for line in lines if line.startswith(start)]) == 1
  for name, said in (("b", "has no schema"), ("c", "holds a list"), ("d", "is a folder")):
    with_it = ["--task=report", f"--input={tmp_path}/*.json", f"--input={tmp_path}/{name}.json"]
    assert main.main(with_it) == 2
    assert f"{name}.json: {said}" in capsys.readouterr().err
  assert main.main(["--task=report", f"--input={tmp_path}/[bcd].json"]) == 2
  assert "--input: no file has rows" in capsys.readouterr().err


def test_a_broken_output_is_refused_where_a_pattern_met_it_too(tmp_path, capsys):
  save(tmp_path / "a.json")
  (tmp_path / "b.json").write_text('{"schema": 1, "rows": [')
  assert main.main(["--task=report", f"--input={tmp_path}/*.json"]) == 2
  assert "b.json: line 1 column 24: not JSON" in capsys.readouterr().err


def test_the_kept_results_are_reported_with_one_pattern(capsys):
  assert main.main(["--task=report", f"--input={RESULTS}/*.json", "--format=json"]) == 0
  captured = capsys.readouterr()
  assert "skipped: " in captured.err
  assert "h200-matmul.json: has no schema" in captured.err
  assert {row["kind"] for row in json.loads(captured.out)["rows"]} == {"ratio"}


def test_every_flag_but_an_ops_own_is_no_part_of_a_problem():
  line = "pallas-bench --task=run --tile=a=1 --input=x --cold_l2 --causal --window=4 --of_later=2"
  row = {"shape": "m=1", "dtype": "bfloat16", "arguments": line}
  flags_of = read._flags(line)
  assert read._options(row, flags_of) == ["--causal", "--window=4", "--of_later=2"]


# --- where it goes


def test_format_is_asked_for_or_suits_the_place(monkeypatch):
  given = flags.parse(["--task=report", "--input=x", "--format=csv"])
  assert given.format == "csv"
  assert flags.parse(["--task=report", "--input=x"]).format is None
  assert flags.parse(["--task=plan"]).format == "table"
  blocks = (Block(title="a|b", lines=("said",)),)
  shown = Report(environment={}, rows=(), blocks=blocks)
  monkeypatch.setattr(terminal, "is_wanted", lambda: True)
  monkeypatch.setattr(terminal, "render", lambda report: "tables of rich")
  assert render.render_unasked(shown, to_file=False) == "tables of rich"
  assert "### a\\|b" in render.render_unasked(shown, to_file=True)
  monkeypatch.setattr(terminal, "is_wanted", lambda: False)
  assert "### a\\|b" in render.render_unasked(shown, to_file=False)


def test_rich_shows_every_cell_and_line():
  pytest.importorskip("rich")
  block = Block(
    title="kernels [1]",
    header=("problem", "us"),
    cells=(("m=64", "3.0"), ("m=65", "failed")),
    numeric=frozenset({"us"}),
    groups={1: "those that failed"},
    lines=("[bold] is no markup",),
    commands=("again: pallas-bench " + "--x=1 " * 30,),
  )
  report = Report(environment={"jax": "0.11.2"}, rows=(), blocks=(block,))
  text = terminal.render(report, width=60, colour=False)
  for said in ("jax 0.11.2", "kernels [1]", "m=65", "those that failed", "[bold] is no markup"):
    assert said in text
  assert "\x1b[" not in text
  assert any("--x=1 " * 29 in line for line in text.splitlines())
  assert "\x1b[" in terminal.render(report, width=60)
