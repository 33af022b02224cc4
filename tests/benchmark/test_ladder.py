"""The optimisation ladder: steps that are matmuls, lower for CUDA, are predicted; and its page."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hw_profiles
import reference
from pallas_kernels import device
from pallas_kernels.benchmark import main, runner, timing
from pallas_kernels.benchmark.ladder import cuda_cores, page, table
from pallas_kernels.benchmark.ladder.steps import steps
from pallas_kernels.benchmark.tasks import ladder

H200 = hw_profiles.get_profile("h200_sxm")
FFN = hw_profiles.MatmulProblem(1024, 4096, 12288)


@pytest.mark.parametrize(
  ("kernel", "options"),
  [(cuda_cores.one_output_a_thread, {"columns": 32}), (cuda_cores.register_tiles, {"side": 16})],
)
def test_the_lowest_steps_are_matmuls(kernel, options, rng):
  a, b = reference.exact_integer_operands(rng, 32, 24, 64, "bfloat16")
  out = kernel(jnp.asarray(a), jnp.asarray(b), interpret=True, **options)
  np.testing.assert_array_equal(
    np.asarray(out, np.float64), reference.matmul(a, b).astype(np.float64)
  )


@pytest.mark.parametrize("step", steps(), ids=lambda step: step.name)
def test_every_step_lowers_for_cuda_and_has_a_prediction(step):
  a, b = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((256, 256), (256, 512)))
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    text = jax.jit(step.run).trace(a, b).lower(lowering_platforms=("cuda",)).as_text()
  assert "custom_call" in text
  predicted_us, bound = step.predict(FFN, H200)
  assert predicted_us > 0
  assert bound


def test_the_model_orders_the_kinds_of_steps_as_they_were_built_up():
  # the stages within one kind are close; the kinds are not
  naive, registers, tensor, *_, final = (step.predict(FFN, H200)[0] for step in steps())
  assert naive > registers > tensor > final


@pytest.fixture
def pretended_hopper(monkeypatch):
  """An H200 on which every step is XLA's product and takes 4 us."""
  hopper = device.TargetDevice(
    platform="gpu", kind="NVIDIA H200", num_cores=132, compute_capability=(9, 0)
  )
  monkeypatch.setattr(runner, "platform", lambda: "gpu")
  monkeypatch.setattr(ladder, "target_device", lambda: hopper)
  monkeypatch.setattr(
    ladder, "steps", lambda: tuple(dataclasses.replace(step, run=jnp.dot) for step in steps())
  )
  time = timing.Measurement(
    median_us=4.0, minimum_us=2.0, maximum_us=6.0, iterations=3, timer="device", cold_l2=False
  )
  monkeypatch.setattr(timing, "measure", lambda *_, **__: time)


def test_a_run_keeps_a_time_for_each_step_and_replaces_it(pretended_hopper, tmp_path):
  path = tmp_path / "kept.json"
  arguments = ["--task=ladder", "--shape=m=128,k=64,n=256", f"--results={path}", "--iterations=3"]
  for _ in range(2):
    assert main.main(arguments) == 0
  kept = json.loads(path.read_text())["rows"]
  assert sorted(row["details"]["step"] for row in kept) == sorted(step.name for step in steps())
  for row in kept:
    assert (row["kernel"], row["shape"]) == (table.KERNEL, "m=128,k=64,n=256")
    assert (row["measured_us"], row["peers"], row["check"]) == (4.0, {"xla": 4.0}, "passed")


@pytest.mark.parametrize(
  "flag", ["--bias", "--activation=silu", "--out_dtype=float32", "--shape=m=8,k=8,n=8,batch=2"]
)
def test_a_product_that_the_lowest_steps_do_not_compute_is_refused(pretended_hopper, capsys, flag):
  assert main.main(["--task=ladder", flag]) == 2
  assert f"{flag}: --task=ladder is about one plain matmul" in capsys.readouterr().err


# --- the page


def test_the_page_is_what_the_command_writes():
  assert page.PAGE.read_text(encoding="utf-8") == page.current(), (
    "run python -m pallas_kernels.benchmark.ladder --write"
  )


def test_the_page_has_the_kept_times_beside_todays_predictions_and_says_what_they_are_of():
  step = steps()[-1]
  row = {
    "kernel": table.KERNEL,
    "shape": "m=1024,k=4096,n=12288",
    "dtype": "bfloat16",
    "measured_us": 200.0,
    "peers": {"xla": 150.0},
    "check": "passed",
    "details": {"step": step.name},
    "environment": {
      "device_kind": "A GPU",
      "driver": "1.2",
      "jax": "3.4",
      "git_commit": "0123456789",
      "date": "2026-11-30T09:50:48+00:00",
    },
  }
  of_another_problem = row | {"shape": "m=1,k=4096,n=12288", "measured_us": 777.0}
  text = page.text({"rows": [row, of_another_problem]})
  assert "Measured on one A GPU, driver 1.2, jax 3.4, 2026-11-30, at commit 0123456." in text
  assert "README.md's tables are of other sessions" in text
  *others, last = [line for line in text.splitlines() if line.startswith("| ")][2:]
  assert f"| {step.predict(FFN, H200)[0]:.0f} |" in last
  assert last.endswith("| 200.0 | 515.4 | 75 % | passed |")
  assert all(line.endswith("| - | - | - | not run |") for line in others)
  assert "cuBLAS through XLA takes 150.0 us" in text


def test_a_page_without_times_says_so():
  assert "None were measured yet." in page.text({"rows": []})
