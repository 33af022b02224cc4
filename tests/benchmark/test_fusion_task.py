"""The fusion study: right programs, the course's bytes, and a page that says what they give."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hw_profiles
from pallas_kernels import device
from pallas_kernels.benchmark import main, runner, timing
from pallas_kernels.benchmark.fusion import chain, page, transposes
from pallas_kernels.benchmark.fusion.programs import PROGRAMS

MIB = 2**20
ROWS = 3


def fusion(capsys, *arguments):
  status = main.main(["--task=fusion", "--format=json", *arguments])
  return status, json.loads(capsys.readouterr().out)["rows"]


def test_the_chain_moves_the_bytes_of_the_course():
  found = {name: program for name, program in PROGRAMS.items() if name.startswith("chain:")}
  assert {
    name: (program.traffic_bytes / MIB, program.peak_bytes / MIB, program.launches)
    for name, program in found.items()
  } == {
    "chain:1|2|3": (156, 72, 3),
    "chain:1|23": (108, 72, 2),
    "chain:12|3": (108, 72, 2),
    "chain:123": (60, 60, 1),
    "chain:swiglu_quantize": (60, 60, 1),
  }


def test_segments_move_the_bytes_of_the_course():
  whole, split = PROGRAMS["rms_norm:1"], PROGRAMS["rms_norm:8"]
  assert (whole.traffic_bytes / MIB, whole.launches) == (24, 1)
  assert (round(split.traffic_bytes / MIB, 1), split.launches) == (32.1, 3)
  assert split.kernels == 2


def test_every_partition_gives_the_same_bits_and_its_check_sees_a_wrong_one():
  programs = [program for program in PROGRAMS.values() if hasattr(program, "partition")]
  operands = programs[0].operands(ROWS)
  codes = [
    runner.result(call, operands)
    for program in programs
    for call in (program.call("interpret"), program.peer())
  ]
  for other in codes[1:]:
    np.testing.assert_array_equal(other.view(np.uint8), codes[0].view(np.uint8))
  assert programs[0].check(codes[0], operands, "interpret").check == "passed"
  wrong = codes[0].copy()
  wrong[1, 5] = -wrong[1, 5] + 1
  verdict = programs[0].check(wrong, operands, "interpret")
  assert verdict.check == "failed"
  assert "1 of" in verdict.notes[0]


def test_leaving_out_a_rounding_gives_other_codes():
  # what distinguishes the library's op from the chain: Z is float32 until it is a code
  rounded, unrounded = PROGRAMS["chain:123"], PROGRAMS["chain:swiglu_quantize"]
  operands = rounded.operands(ROWS)
  a, b = (runner.result(one.call("interpret"), operands) for one in (rounded, unrounded))
  differ = np.mean(a.view(np.uint8) != b.view(np.uint8))
  assert 0 < differ < 0.05


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_compiles_for_the_gpu_in_its_launches(name):
  program = PROGRAMS[name]
  operands = [
    None
    if x is None
    else jax.ShapeDtypeStruct((program.shape.rows, *x.shape[1:]), x.dtype)
    if x.ndim > 1
    else jax.ShapeDtypeStruct(x.shape, x.dtype)
    for x in program.operands(1)
  ]
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    lowered = jax.jit(program.call(None)).trace(*operands).lower(lowering_platforms=("cuda",))
  assert lowered.as_text().count("custom_call @") == program.kernels
  predicted_us, bound = program.predict(hw_profiles.get_profile("h200_sxm"))
  assert predicted_us > 0
  assert bound


def test_padding_and_swizzling_both_free_a_column_of_words_of_conflicts():
  ways = {
    (one.side, one.dtype, one.layout): (one.column_ways, one.shared_bytes)
    for one in transposes.banks()
  }
  assert ways[32, "float32", "plain"] == (32, 4096)
  assert ways[32, "float32", "padded"] == (1, 4224)
  assert ways[32, "float32", "swizzled"] == (1, 4096)


def test_programs_run_and_are_checked_where_there_is_no_gpu(capsys):
  status, rows = fusion(capsys, "--program=chain:12|3,rms_norm:8,transpose:16x16")
  assert status == 0
  assert [row["program"] for row in rows] == ["chain:12|3", "rms_norm:8", "transpose:16x16"]
  for row in rows:
    assert row["check"] == "passed"
    assert row["checked_with"] == "interpret on cpu"
    assert row["measured_us"] is None
    assert row["profile"] == "h200_sxm"
  assert "'--program=chain:12|3'" in rows[0]["arguments"]


def test_nothing_runs_where_nothing_is_checked(capsys, monkeypatch):
  monkeypatch.setattr(runner, "result", None)
  status, rows = fusion(capsys, "--check=none", "--profile=h100_sxm")
  assert status == 0
  assert len(rows) == len(PROGRAMS)
  assert {row["check"] for row in rows} == {"not run"}
  assert {row["profile"] for row in rows} == {"h100_sxm"}


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["--program=chain:1|3"], ["--program=chain:1|3", "chain:123"]),
    (["--profile=ascend_910b3"], ["--profile=ascend_910b3", "NVIDIA GPU"]),
    (["--profile=h100_sxm,h200_sxm"], ["expected one of its profiles"]),
    (["--iterations=3"], ["--iterations", "needs a GPU"]),
    (["--shape=rows=1,columns=2"], ["--shape is not read by --task=fusion"]),
  ],
)
def test_what_it_cannot_do_is_said(arguments, words, capsys):
  assert main.main(["--task=fusion", *arguments]) == 2
  said = capsys.readouterr().err
  for word in words:
    assert word in said


def test_measured_times_are_kept_and_go_to_the_page(capsys, monkeypatch, tmp_path):
  measured = timing.Measurement(
    median_us=4.0,
    minimum_us=2.0,
    maximum_us=6.0,
    iterations=30,
    timer="device",
    cold_l2=False,
    launches=2,
  )
  monkeypatch.setattr(runner, "platform", lambda: "gpu")
  monkeypatch.setattr(timing, "measure", lambda *a, **k: measured)
  monkeypatch.setattr(timing, "measure_compiled", lambda *a, **k: measured)
  # what stands in for the kernels on the device: XLA's program
  monkeypatch.setattr(chain.ChainProgram, "call", lambda self, _: self.peer())
  monkeypatch.setattr(
    chain.ChainProgram,
    "activated",
    lambda self, _: lambda gate: jax.nn.silu(gate.astype(jnp.float32)).astype(gate.dtype),
  )
  path = tmp_path / "kept.json"
  status, rows = fusion(capsys, "--program=chain:12|3", f"--results={path}")
  assert status == 0
  assert (rows[0]["measured_us"], rows[0]["xla_us"], rows[0]["measured_launches"]) == (4.0, 4.0, 2)
  (kept,) = json.loads(path.read_text())["rows"]
  assert kept["options"] == ["--program=chain:12|3"]
  assert kept["ratios"] == {"xla": 1.0}
  line = next(one for one in page.text({"rows": [kept]}).splitlines() if "| 12\\|3 |" in one)
  assert line.endswith("| 4.0 | 4.0 | passed |")
  assert "Measured on one cpu" in page.text({"rows": [kept]})


def test_the_page_is_what_the_command_writes():
  assert page.PAGE.read_text(encoding="utf-8") == page.current(), (
    "run python -m pallas_kernels.benchmark.fusion --write"
  )


def test_a_gpu_counted_the_bank_conflicts_that_the_model_predicts():
  rows = json.loads(page.RESULTS.read_text(encoding="utf-8"))["banks"]["rows"]
  counted = {(x["side"], x["dtype"], x["layout"]): x["load_passes"] / x["loads"] for x in rows}
  predicted = {(x.side, x.dtype, x.layout): x.column_ways for x in transposes.banks()}
  assert counted == predicted
