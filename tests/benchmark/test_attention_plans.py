"""`--task=plan` of attention: the planner's numbers, the options, what is refused."""

import json
import pathlib
import re
import shlex

import pytest

import hw_profiles
from pallas_kernels.benchmark import main
from pallas_kernels.benchmark.ops.decode_attention import DECODE_ATTENTION, DecodeOptions
from pallas_kernels.benchmark.ops.flash_attention import (
  FLASH_ATTENTION,
  FlashAttentionOptions,
  FlashAttentionShape,
)

SHAPE = "--shape=batch=2,seq_q=1024,seq_kv=1024,heads=8,kv_heads=2"


def output(capsys, *arguments):
  assert main.main(["--task=plan", *arguments]) == 0
  return capsys.readouterr().out


def rows_of(capsys, *arguments):
  return json.loads(output(capsys, *arguments, "--format=json"))["rows"]


def test_rows_have_the_planner_s_numbers(capsys):
  tile = "block_q=128,block_kv=128,num_stages=2"
  (row,) = rows_of(
    capsys,
    "--kernel=flash_attention",
    SHAPE,
    "--causal",
    f"--tile={tile}",
    "--profile=h200_sxm",
  )
  problem = hw_profiles.AttentionProblem(2, 1024, 1024, 8, 2, causal=True)
  plan = hw_profiles.plan(problem, hw_profiles.AttentionConfig(128, 128, 2), "h200_sxm")
  assert row["predicted_us"] == plan.predicted_us
  assert row["adds_up"] == list(plan.adds_up())
  assert row["traffic_bytes"] == plan.traffic.total_bytes
  assert row["tile"] == tile
  assert row["arguments"] == (
    f"pallas-bench --task=plan --kernel=flash_attention {SHAPE} --dtype=bfloat16 --tile={tile} "
    "--profile=h200_sxm --causal"
  )
  helps = hw_profiles.what_helps(plan)
  assert row["what_helps"]["without_limit"][0]["what"] == helps.ideal[0].what


def test_row_s_line_gives_it_again(capsys):
  flags = ["--causal", "--causal_alignment=bottom_right", "--window=255:0", "--backward"]
  shape = "--shape=batch=1,seq_q=512,seq_kv=1024,heads=4,head_dim=64"
  for row in rows_of(capsys, "--kernel=flash_attention", shape, *flags, "--profile=h100_sxm"):
    (again,) = rows_of(capsys, *row["arguments"].split()[2:])
    assert again == row


def test_backward_is_judged_by_the_errors_of_backward(capsys):
  forward, backward = (
    output(capsys, "--kernel=flash_attention", SHAPE, "--profile=h200_sxm", *flags)
    for flags in ([], ["--backward"])
  )
  errors = [
    hw_profiles.get_profile("h200_sxm").name in text and text.split("over ")[1].split(" rows")[0]
    for text in (forward, backward)
  ]
  assert errors[0] != errors[1]


@pytest.mark.parametrize("profiles", ["h200_sxm,ascend_910b3", "rtx_pro_6000,ascend_950pr"])
@pytest.mark.parametrize("kernel", ["flash_attention", "decode_attention"])
def test_table_reads_from_buffers_to_what_would_help(capsys, kernel, profiles):
  text = output(capsys, f"--kernel={kernel}", f"--profile={profiles}")
  for words in (
    "predicted us",
    "most help",
    "needed KiB",
    "K ring" if kernel == "flash_attention" and "h200" in profiles else "K",
    "busy, us:",
    "  predicted ",
    "overlapped ",
    "traffic by tier",
    "of the device, most help without",
    "Times on",
  ):
    assert words in text
  assert max(map(len, text.splitlines())) < 140


def test_documented_example_says_what_the_program_says(capsys):
  text = (pathlib.Path(__file__).parents[2] / "docs" / "planner.md").read_text(encoding="utf-8")
  (command,) = re.findall(r"^pallas-bench (--task=plan .*)$", text, re.MULTILINE)
  assert main.main([*shlex.split(command), "--tile=block_q=64,block_kv=64,num_stages=1"]) == 0
  printed = " ".join(capsys.readouterr().out.split())
  quoted = re.findall(r"`(most help: [^`]*)`", " ".join(text.split()))
  assert len(quoted) == 2
  for sentence in quoted:
    assert sentence in printed
  (lines,) = re.findall(r"```\n(predicted .*?)```", text, re.DOTALL)
  for line in lines.splitlines():
    assert line in printed


def test_the_example_read_aloud_has_the_numbers_of_today():
  text = (pathlib.Path(__file__).parents[2] / "docs" / "planner.md").read_text(encoding="utf-8")
  _, _, aloud = text.partition("## An example read aloud")
  aloud = " ".join(aloud.partition("\n## ")[0].split())
  problem = hw_profiles.AttentionProblem(
    batch=2, seq_q=4096, seq_kv=4096, heads=32, kv_heads=8, causal=True
  )
  config = hw_profiles.AttentionConfig
  small = hw_profiles.plan(problem, config(64, 64, 1), "h200_sxm")
  waiting = hw_profiles.plan(problem, small.config, "h200_sxm", schedule="warp_specialized")
  own, compiled = (
    hw_profiles.rank(problem, name, top=1)[0] for name in ("h200_sxm", "ascend_910b3")
  )
  by_hand = hw_profiles.plan(problem, config(64, 1024), "ascend_910b3", schedule="cube_vector")
  wide = hw_profiles.plan(problem, config(64, 64), "ascend_950pr")
  assert own.config.describe().startswith("block_q=128,block_kv=128,num_stages=2")
  assert compiled.config.describe().startswith("block_q=16,block_kv=64,num_stages=2")
  for said in (
    f"busy for {small.times_us['tensor_cores']:.0f} us",
    f"prediction to {small.predicted_us:,.0f};",
    f"it would be {waiting.predicted_us:,.0f}.",
    f"takes {own.predicted_us:,.0f}:",
    f"takes {compiled.predicted_us:,.0f}:",
    f"{compiled.traffic_bytes['l0c'] / 1e9:.1f} GB of them out of L0C",
    f"{compiled.traffic_bytes['l1'] / 1e9:.1f} GB into L1",
    f"take {by_hand.predicted_us:,.0f}:",
    f"takes {wide.predicted_us:,.0f}, and the {wide.bound} unit binds",
  ):
    assert said in aloud


def test_default_tiles_and_each_profile_s_own_are_planned(capsys):
  found = rows_of(capsys, "--kernel=decode_attention", "--profile=h200_sxm,ascend_910b3")
  tiles = {row["tile"] for row in found}
  assert {tile.describe() for tile in DECODE_ATTENTION.default_tiles} <= tiles
  for profile in ("h200_sxm", "ascend_910b3"):
    times = [row["predicted_us"] for row in found if row["profile"] == profile and row["fits"]]
    best = hw_profiles.rank(
      DECODE_ATTENTION.problem(DECODE_ATTENTION.default_shape, "bfloat16", DecodeOptions()),
      profile,
      top=1,
    )[0]
    assert best.predicted_us in times


def test_sweep_over_lengths_gets_slower(capsys):
  found = rows_of(
    capsys,
    "--kernel=decode_attention",
    "--shape=batch=4,seq_kv=4096:16384:4096,heads=32,kv_heads=8",
    "--tile=block_kv=128",
    "--profile=h200_sxm",
  )
  times = [row["predicted_us"] for row in found]
  assert len(times) == 4
  assert times == sorted(times)


@pytest.mark.parametrize(
  ("text", "sides"), [("1023:0", (1023, 0)), ("all:0", (None, 0)), ("5:all", (5, None))]
)
def test_window_is_keys_to_the_left_and_right(text, sides):
  shape = FlashAttentionShape(batch=1, seq_q=64, seq_kv=64, heads=1)
  problem = FLASH_ATTENTION.problem(shape, "float16", FlashAttentionOptions(window=text))
  assert problem.window == sides


def test_planned_dtype_keeps_its_row_in_a_comparison_and_names_what_kernels_take(capsys):
  (row,) = rows_of(
    capsys,
    "--task=compare",
    "--kernel=flash_attention",
    "--shape=batch=1,seq_q=64,seq_kv=64,heads=1",
    "--dtype=float8_e4m3fn",
    "--tile=block_q=64,block_kv=64",
    "--profile=h200_sxm",
  )
  assert row["check"] == "not run"
  (note,) = (note for note in row["notes"] if note.startswith("not run: "))
  assert note.endswith("its kernels take bfloat16, float16, float32")
