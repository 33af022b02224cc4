"""The measured numbers of docs/attention.md are those of docs/results."""

import json
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "attention.md").read_text(encoding="utf-8")
RESULTS = json.loads((DOCS / "results" / "h200-attention.json").read_text(encoding="utf-8"))
ROWS = RESULTS["rows"]
MIB = 2**20


def cells_of(label):
  (line,) = re.findall(rf"^\| {label} \|.*$", PAGE, re.MULTILINE)
  return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.parametrize(
  ("label", "options"),
  [("forward", ["--causal"]), ("with gradients", ["--causal", "--backward"])],
)
def test_memory_is_what_was_measured(label, options):
  (row,) = (x for x in ROWS if "--memory" in x["arguments"] and x["options"] == options)
  found = row["details"]
  result, extra, unfused = cells_of(label)
  assert result == f"{found['result_bytes'] / MIB:.1f}"
  assert float(extra) == pytest.approx(found["extra_bytes"] / MIB, rel=0.05)
  assert unfused == f"{found['peers_extra_bytes']['xla'] / MIB:.0f}"


@pytest.mark.parametrize("block_kv", [16, 64, 128])
def test_the_cost_of_a_block_s_keys_is_what_was_measured(block_kv):
  tile = f"block_q=64,block_kv={block_kv},"
  (row,) = (x for x in ROWS if x["tile"].startswith(tile) and x["implementation"] == "triton")
  found = row["details"]
  assert cells_of(block_kv) == [
    f"{found['traffic_bytes'] / MIB:.0f}",
    str(found["state_updates"]),
    f"{row['predicted_us']:.0f}",
    f"{row['measured_us']:.0f}",
  ]


def test_the_times_of_decode_s_kernels_are_what_was_measured():
  kept = RESULTS["decode"]["one_warp"]
  ours = kept["kernels"]["32/64/3/1"]["after"]
  (read,) = (us for what, us in kept["floors_us"].items() if "by TMA" in what)
  (empty,) = (us for what, us in kept["floors_us"].items() if what.startswith("empty kernel, 1 "))
  wanted = (
    f"parts take {ours['parts']:.1f} us and the merge {ours['merge']:.1f}, where reading keys and"
    f" values from L2 takes {read:.1f} by itself, an empty kernel {empty:.1f} and cuDNN"
    f" {kept['peers']['cudnn']['us']:.1f} "
  )
  assert wanted in " ".join(PAGE.split())
