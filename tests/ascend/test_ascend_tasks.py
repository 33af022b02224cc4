"""`pallas-bench` with both vendors' compilers; its reports in docs/ held against it."""

import json
import pathlib
import re
import tempfile

import pytest

from hw_profiles.ascend import process
from hw_profiles.ascend.errors import CompilerFailedError
from pallas_kernels.benchmark import main
from pallas_kernels.lowering import compile_pool
from pallas_kernels.lowering.compile_task import compile_task

pytestmark = [pytest.mark.lowering, pytest.mark.compilers]

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SMALL = "--shape=m=256,k=512,n=256"


def _rows(capsys, *arguments):
  assert main.main([*arguments, "--format=json"]) == 0
  return {row["profile"]: row for row in json.loads(capsys.readouterr().out)["rows"]}


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> pathlib.Path:
  """Where temporary files go for the test."""
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  return tmp_path


def test_stages_of_both_vendors(capsys, temporary):
  tile = "--tile=block_m=64,block_n=64,block_k=64"
  rows = _rows(capsys, "--task=mlir", _SMALL, tile, "--activation=silu")
  assert list(rows) == ["h200_sxm", "ascend_910b3", "ascend_950pr"]
  for name in ("ascend_910b3", "ascend_950pr"):
    assert list(rows[name]["stages"]) == ["triton", "simplified", "linalg", "hivm"]
    found = rows[name]["operations"]
    assert found["dots"] == 1
    assert found["copies"] >= 3
    assert found["flags_set"] == found["flags_awaited"] > 0
  # silu is an exponential, a sum, a quotient at least
  assert rows["ascend_910b3"]["operations"]["vector_operations"] >= 4
  assert rows["h200_sxm"]["operations"]["wgmmas"]
  assert list(temporary.iterdir()) == []


def test_budget_beside_what_both_compilers_allocate(capsys, temporary):
  tile = "--tile=block_m=128,block_n=256,block_k=64,num_stages=4"
  rows = _rows(capsys, "--task=ascend", "--shape=m=1024,k=4096,n=12288", tile)
  assert {row["outcome"] for row in rows.values()} == {"accepted"}
  (shared, registers) = rows["h200_sxm"]["memories"]
  assert shared["compiler_bytes"] == shared["model_bytes"] == 229440
  assert registers["compiler_bytes"] is None
  assert any("ptxas" in note for note in rows["h200_sxm"]["notes"])
  plan = rows["ascend_910b3"]["allocation"]
  assert plan["core"] == "AIC"
  assert plan["double_buffering"] == "kept"
  accumulator = next(
    buffer
    for program in plan["programs"]
    for buffer in program["buffers"]
    if buffer["role"] == "accumulator"
  )
  assert accumulator["copy_bytes"] == 128 * 256 * 4
  assert accumulator["addresses"] == [0]
  l1 = next(x for x in rows["ascend_910b3"]["memories"] if x["space"] == "L1")
  # of the four stages the compiler keeps two, and so does the planner
  assert l1["model_bytes"] == l1["compiler_bytes"] == 2 * (128 + 256) * 64 * 2
  assert l1["difference_bytes"] == 0
  assert any("one copy or two" in note for note in rows["ascend_910b3"]["notes"])
  assert list(temporary.iterdir()) == []


def test_overflow_and_the_nearest_tile_that_all_take(capsys, temporary):
  tile = "--tile=block_m=256,block_n=256,block_k=64"
  rows = _rows(capsys, "--task=ascend", "--shape=m=1024,k=4096,n=12288", tile)
  assert {row["outcome"] for row in rows.values()} == {"too large"}
  wanted = {name: row["allocation"] and row["allocation"]["overflow"] for name, row in rows.items()}
  assert wanted["ascend_910b3"] == {
    "space": "L0C",
    "needed_bits": 8 * 256 * 256 * 4,
    "available_bits": 8 * 128 * 1024,
  }
  assert wanted["ascend_950pr"]["space"] == "UB"
  (nearest,) = {row["nearest"] for row in rows.values()}
  again = _rows(capsys, "--task=ascend", "--shape=m=1024,k=4096,n=12288", f"--tile={nearest}")
  assert {row["outcome"] for row in again.values()} == {"accepted"}
  assert list(temporary.iterdir()) == []


def test_crash_is_reported_with_its_input_kept(capsys, tmp_path, monkeypatch):
  """The pool runs here, so that a compiler can be made to crash."""

  def crash(command, *, folder, stages, time_limit_s):
    if "bishengir-compile" in str(command[0]):
      raise CompilerFailedError("bishengir-compile", "crashed", "Stack dump: of a test", stages)
    return process.run_tool(command, folder=folder, stages=stages, time_limit_s=time_limit_s)

  from hw_profiles.ascend import route

  monkeypatch.setattr(route, "run_tool", crash)
  monkeypatch.setattr(
    compile_pool.CompilePool,
    "compile",
    lambda self, tasks, *, on_done: [compile_task(task) for task in tasks],
  )
  folder = tmp_path / "kept"
  row = _rows(
    capsys,
    "--task=ascend",
    _SMALL,
    "--tile=block_m=64,block_n=64,block_k=64",
    "--profile=ascend_910b3",
    "--top=1",
    f"--folder={folder}",
  )["ascend_910b3"]
  assert row["outcome"] == "failed"
  assert "Stack dump: of a test" in row["reason"]
  kept = pathlib.Path(row["input_kept"])
  assert kept.parent == folder
  assert "linalg.matmul" in kept.read_text()


@pytest.mark.parametrize(
  ("document", "arguments"),
  [
    ("porting-matmul.md", ["--kernel=matmul"]),
    (
      "porting-attention.md",
      [
        "--kernel=flash_attention",
        "--shape=batch=1,seq_q=8192,seq_kv=8192,heads=32,kv_heads=8",
      ],
    ),
  ],
)
def test_porting_report_is_what_the_command_says_today(document, arguments, capsys):
  assert main.main(["--task=port", "--format=markdown", *arguments]) == 0
  # the first line is the environment: versions, commit, date
  said = capsys.readouterr().out.split("\n", 1)[1]
  written = (_ROOT / "docs" / document).read_text(encoding="utf-8").split("\n", 1)[1]
  assert said == written, f"docs/{document} is stale: make porting writes it anew"


def test_the_documented_plans_are_what_the_comments_say():
  text = (_ROOT / "docs" / "ascend.md").read_text(encoding="utf-8")
  code = next(x for x in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "wide" in x)
  found = {}
  exec(code, found)
  plan, wide = found["plan"], found["wide"]
  assert (plan.fits, plan.core, plan.workspace_bytes_per_block) == (True, "mixed", 32768)
  assert (plan.programs[0].flags_set, plan.double_buffering) == (("0",), "kept")
  assert wide.reason.startswith("UB needs 2883584 bits (360448 B), there are 1572864 bits")
  assert (wide.fits, wide.programs, wide.buffers) == (False, (), ())
