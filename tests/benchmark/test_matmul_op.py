"""What the benchmark knows of matmul: operands, parts, and how a result is judged."""

import json

import numpy as np
import pytest

from pallas_kernels import device
from pallas_kernels.benchmark import main, rows, runner, timing
from pallas_kernels.benchmark.ops.matmul import MATMUL, MatmulOptions, MatmulShape

SHAPE = MatmulShape(m=200, k=48, n=600)
SHARED = "--tile=block_m=64,block_n=64,block_k=32,num_stages=1,accumulator=shared"


class Lowered:
  """A program that is never compiled."""

  def as_text(self):
    return ""

  def compile(self):
    return self


@pytest.fixture
def h200(monkeypatch):
  """An H200 to plan and trace for; nothing runs on it, every kernel takes 4 us."""
  measured = timing.Measurement(
    median_us=4.0, minimum_us=4.0, maximum_us=4.0, iterations=1, timer="device", cold_l2=False
  )
  monkeypatch.setattr(runner, "result", lambda *_: None)
  monkeypatch.setattr(timing, "measure", lambda *_, **__: measured)
  monkeypatch.setattr(timing, "lowered_for_device_timer", lambda *_, **__: Lowered())
  monkeypatch.setattr(timing, "measure_compiled", lambda *_, **__: measured)
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    yield


def rows_of(capsys, *arguments, status=0):
  assert main.main([*arguments, "--format=json"]) == status
  return json.loads(capsys.readouterr().out)["rows"]


@pytest.mark.parametrize("task", ["run", "compare"])
@pytest.mark.parametrize(
  ("implementation", "schedule"), [("triton", "multistage"), ("mosaic_gpu", "warp_specialized")]
)
def test_row_prices_the_kernel_that_it_measures(h200, capsys, task, implementation, schedule):
  tile = "--tile=block_m=128,block_n=128,block_k=64,num_stages=3"
  (row,) = rows_of(
    capsys,
    f"--task={task}",
    f"--implementation={implementation}",
    "--shape=m=512,k=512,n=512",
    tile,
    "--profile=h200_sxm",
    "--check=none",
  )
  assert row["implementation"] == implementation
  assert row["measured_us"] == 4.0
  assert row["schedule"] == schedule


def test_best_tile_here_is_that_of_the_kernel_that_runs(h200, capsys):
  found = rows_of(
    capsys,
    "--implementation=triton",
    "--shape=m=512,k=512,n=512",
    "--profile=h200_sxm,h100_sxm",
    "--check=none",
  )
  explained = MATMUL.explain(
    MatmulShape(512, 512, 512), "bfloat16", MatmulOptions(), config=None, implementation="triton"
  )
  (best,) = [
    row
    for row in found
    if row["profile"] == "h200_sxm" and any("first of the planner" in x for x in row["notes"])
  ]
  assert best["tile"] == explained.config.describe()
  assert best["predicted_us"] == explained.plan.predicted_us
  # on a device that is not here the planner's own choice of kernel stands
  assert "warp_specialized" in {row["schedule"] for row in found if row["profile"] == "h100_sxm"}


def test_what_if_tile_is_planned_and_not_run(capsys):
  (planned,) = rows_of(capsys, "--task=plan", SHARED, "--profile=h100_sxm")
  assert planned["fits"] is True
  # a comparison of plans goes on without a run; a run of nothing is none
  for task, status in (("--task=run", 2), ("--task=compare", 0)):
    arguments = (task, SHARED, "--shape=m=64,k=64,n=64", "--profile=h100_sxm")
    (row,) = rows_of(capsys, *arguments, status=status)
    assert row["check"] == "not run"
    assert row["implementation"] is None
    assert any(
      note.startswith("not run: ") and "accumulator='shared'" in note for note in row["notes"]
    )


def test_operands_are_the_same_on_every_run_whatever_the_bias():
  a, b, none = MATMUL.operands(SHAPE, "float16", MatmulOptions())
  again_a, again_b, bias = MATMUL.operands(SHAPE, "float16", MatmulOptions(bias=True))
  assert none is None
  np.testing.assert_array_equal(a, again_a)
  np.testing.assert_array_equal(b, again_b)
  assert (a.shape, b.shape, bias.shape) == ((200, 48), (48, 600), (600,))
  assert a.dtype == np.float16
  for array in (a, b, bias):
    assert abs(float(np.std(array.astype(np.float64))) - 1) < 0.1


def test_cut_operands_give_that_part_of_the_result():
  options = MatmulOptions(bias=True)
  operands = MATMUL.operands(SHAPE, "float32", options)
  part = MATMUL.sample(SHAPE)
  assert part == MatmulShape(m=128, k=48, n=512)
  a, b, bias = MATMUL.cut(operands, part)
  whole = operands[0].astype(np.float64) @ operands[1].astype(np.float64) + operands[2]
  np.testing.assert_array_equal(
    a.astype(np.float64) @ b.astype(np.float64) + bias, whole[:128, :512]
  )


def test_sample_of_a_small_problem_is_all_of_it():
  assert MATMUL.sample(MatmulShape(m=7, k=9, n=11)) == MatmulShape(m=7, k=9, n=11)


def judged(dtype, options, platform):
  shape = MatmulShape(m=32, k=256, n=48)
  operands = MATMUL.operands(shape, dtype, options)
  actual = MATMUL.call(options, config=None, implementation="xla")(*operands)
  return MATMUL.check(
    np.asarray(actual), operands, options, ran="xla", config=None, platform=platform
  )


def test_bound_of_tensor_cores_is_the_wider_one():
  on_cpu = judged("bfloat16", MatmulOptions(out_dtype="float32"), "cpu")
  on_gpu = judged("bfloat16", MatmulOptions(out_dtype="float32"), "gpu")
  assert on_cpu.check == on_gpu.check == rows.PASSED
  assert on_gpu.error_bound > on_cpu.error_bound


def test_float32_is_held_to_float32_on_a_gpu_too():
  on_cpu = judged("float32", MatmulOptions(), "cpu")
  assert judged("float32", MatmulOptions(), "gpu").error_bound == on_cpu.error_bound
  assert judged("float32", MatmulOptions(precision="highest"), "gpu").check == rows.PASSED


def test_less_than_float32_accuracy_is_not_judged_by_the_bound_of_float32():
  verdict = judged("float32", MatmulOptions(precision="default"), "gpu")
  assert verdict.check == rows.NOT_RUN
  assert verdict.error_bound is None
  assert any("precision=default" in note and "TF32" in note for note in verdict.notes)


def test_precision_reaches_the_row(capsys):
  (row,) = rows_of(
    capsys, "--task=run", "--shape=m=8,k=16,n=8", "--dtype=float32", "--precision=high"
  )
  assert row["check"] == "passed"
  assert "--precision=high" in row["arguments"]
