"""What the README shows works as it is written there."""

import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from pallas_kernels.benchmark import flags, main

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^pallas-bench.*$", README, re.MULTILINE)


def test_examples_run_one_after_the_other():
  blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
  code = "".join(blocks)
  result = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
  )
  assert result.returncode == 0, result.stderr
  assert "runs: " in result.stdout
  assert "\nTrue 0." in result.stdout
  assert "\nSource(value=" in result.stdout
  assert "\nh200_sxm block_q=" in result.stdout
  assert "\nascend_910b3 block_q=" in result.stdout
  assert "\nmost help: schedule=multistage" in result.stdout
  assert "\n32\n1\n" in result.stdout
  assert "\nFalse mathematics 1.7" in result.stdout
  assert "\n2 programs, 0.64" in result.stdout


def test_there_are_commands():
  assert len(COMMANDS) >= 5


@pytest.mark.parametrize("command", COMMANDS)
def test_command_has_the_flags_of_the_program(command, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert flags.parse(shlex.split(command, comments=True)[1:]) is not None


def test_the_comparison_is_the_program_s(capsys):
  (shown,) = re.findall(r"^```\n(matmul m=1024.*?)^```$", README, re.MULTILINE | re.DOTALL)
  planned, checked = shown.split("The kernel itself, run here and compared with float64\n")
  assert main.main(["--check=none"]) == 0
  printed = capsys.readouterr().out.splitlines()
  for line in planned.splitlines():
    assert line == "..." or line in printed
  # run for half a minute by `make compare`; here the tiles alone
  tiles = re.findall(r"^(\S+x\S+/\d+)", checked, re.MULTILINE)
  assert tiles
  assert {f"{tile}:" for tile in tiles} == {
    line.split()[0] for line in printed if re.match(r"\d+x\d+x\d+/\d+: working set", line)
  }


# --- the times are those of docs/results


def results_of(name):
  return json.loads((ROOT / "docs" / "results" / name).read_text(encoding="utf-8"))


def table_under(sentence):
  """Label and cells of each row of the first table after `sentence`."""
  _, found, rest = README.partition(sentence)
  assert found
  table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE).group()
  rows = [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in table.splitlines()]
  return {cells[0]: cells[1:] for cells in rows[2:]}


def newest(rows, **fields):
  """The kept row of a problem and its peers; the default tile where the planned one is there."""
  found = [
    row
    for row in rows
    if row["peers"] and all(row[name] == value for name, value in fields.items())
  ]
  assert found, fields
  last = max(row["environment"]["date"] for row in found)
  # `--planned` adds a row that names its tile
  return min(
    (row for row in found if row["environment"]["date"] == last),
    key=lambda row: "--tile=" in row["arguments"],
  )


def test_the_gemm_family_s_times_are_the_newest_that_are_kept():
  kept = results_of("h200-gemm.json")
  table = table_under("beside XLA in one process, in microseconds:")
  assert len(table) > 10
  sizes = None
  for label, cells in table.items():
    numbers = re.search(r"(\d+) x (\d+) x (\d+)", label)
    sizes = sizes if numbers is None else numbers.groups()  # "the same with ..."
    if sizes == ("1024", "4095", "4096"):
      found = kept["session_3"]["times_us"]["ragged"]["x".join(sizes)]
      times = found["ours"], found["xla"]
    else:
      kernel = re.match(r"\w*matmul", label)
      dtype = "float8_e4m3fn" if label.startswith("quantized_matmul, e4m3") else "bfloat16"
      row = newest(
        kept["rows"],
        kernel="matmul" if kernel is None else kernel.group(),
        shape="m={},k={},n={}".format(*sizes),
        dtype="int8" if "int8" in label else dtype,
        options=["--activation=silu"] * ("SiLU" in label) + ["--backward"] * ("gradients" in label),
      )
      times = row["measured_us"], row["peers"]["xla"]
    assert cells == [f"{time:.1f}" for time in times], label


def cell(rate):
  return "-" if rate is None else f"{rate:.0f}"


@pytest.mark.parametrize(
  ("sentence", "passes", "flags_of_all"),
  [("Forward, beside its peers", 1, []), ("Forward and backward:", 3.5, ["--backward"])],
)
def test_attention_s_rates_are_those_that_are_kept(sentence, passes, flags_of_all):
  kept = results_of("h200-attention.json")["rows"]
  kept = [row for row in kept if row["kernel"] == "flash_attention"]
  table = table_under(sentence)
  shown = {row["shape"] for row in kept if ("--backward" in row["options"]) == bool(flags_of_all)}
  assert len(table) == len(shown) + 1  # one of them with and without a mask
  for label, cells in table.items():
    *sizes, kind = label.split(", ")
    batch, seq, heads, kv_heads, head_dim = map(int, sizes)
    tflop = 4e-6 * passes * batch * heads * seq * seq * head_dim / (2 if kind == "causal" else 1)
    shape = f"batch={batch},seq_q={seq},seq_kv={seq},heads={heads}"
    shape += f",kv_heads={kv_heads}" if kv_heads != heads else ""
    shape += f",head_dim={head_dim}" if head_dim != 128 else ""
    options = [*(["--causal"] if kind == "causal" else []), *flags_of_all]
    row = newest(kept, shape=shape, options=options)
    found = [row["measured_us"], *(row["peers"].get(who) for who in ("cudnn", "fa3", "tokamax"))]
    assert cells == [cell(time and tflop / time) for time in found], label


def test_decode_s_times_are_those_that_are_kept():
  kept = results_of("h200-attention.json")["rows"]
  table = table_under("`decode_attention` of 32 heads")
  assert len(table) == 6
  for label, cells in table.items():
    batch, keys, cold = re.fullmatch(r"(\d+) x (\d+)(, cold L2)?", label).groups()
    shape = f"batch={batch},seq_kv={keys},heads=32,kv_heads=8"
    row = newest(kept, kernel="decode_attention", shape=shape, cold_l2=bool(cold))
    times = row["measured_us"], *(row["peers"][who] for who in ("cudnn", "fa3", "tokamax"))
    assert cells == [f"{time:.1f}" for time in times], label


def test_the_row_wise_ops_times_are_those_that_are_kept():
  kept = results_of("h200-rowwise.json")["rows"]
  table = table_under("from 1024 x 11008 elements on")
  assert len(table) > 10
  for label, cells in table.items():
    op, rows, columns, gradients = re.fullmatch(
      r"(\w+)(?:, e4m3)?, (\d+) x (\d+)(, with gradients)?", label
    ).groups()
    row = newest(
      kept,
      kernel=op,
      shape=f"rows={rows},columns={columns}",
      options=["--backward"] if gradients else [],
    )
    assert cells == [f"{time:.1f}" for time in (row["measured_us"], row["peers"]["xla"])], label
