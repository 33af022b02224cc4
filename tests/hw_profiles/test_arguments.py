"""Arguments of the wrong kind: a ValueError that names the argument and the value."""

import re

import pytest

import hw_profiles as hw

PROBLEM = hw.MatmulProblem(m=1024, k=4096, n=12288)
CONFIG = hw.MatmulConfig(128, 128, 64)
BLOCK = {"threads_per_block": 128, "registers_per_thread": 32, "shared_bytes_per_block": 0}
LOADS = {"resident_warps": 8, "loads_per_warp": 4, "latency_ns": 600}


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: hw.plan(PROBLEM, CONFIG, "h200", schedule=[]), "schedule=[]: expected"),
    (lambda: hw.plan(PROBLEM, CONFIG, None), "profile=None: expected"),
    (lambda: hw.rank(PROBLEM, "h200", CONFIG), "candidates=MatmulConfig("),
    (lambda: hw.rank(PROBLEM, "h200", 3), "candidates=3: expected"),
    (lambda: hw.rank(PROBLEM, "h200", [3]), "config=3: expected a MatmulConfig"),
    (lambda: hw.matmul_candidates("h200", None), "problem=None: expected a MatmulProblem"),
    (lambda: hw.MatmulProblem(1, 1, 1, bias="no"), "MatmulProblem.bias='no': expected True"),
    (lambda: hw.MatmulProblem(1, 1, 1, shared_b="x"), "MatmulProblem.shared_b='x': expected"),
    (lambda: hw.roofline("h100", flops=1, bytes=1, dtype=[]), "dtype=[]: h100_sxm has no rate"),
    (lambda: hw.roofline(3, flops=1, bytes=1, dtype="int8"), "profile=3: expected"),
    (lambda: hw.residency("910b3", **BLOCK), "gpu='ascend_910b3': expected a GpuProfile"),
    (lambda: hw.residency(None, **BLOCK), "gpu=None: expected a GpuProfile"),
    (lambda: hw.in_flight(hw.get_profile("910b3"), **LOADS), "gpu='ascend_910b3': expected"),
    (lambda: hw.get_profile("h100").source([]), "field=[]: h100_sxm has no such number"),
    (
      lambda: hw.warp_specialized_shared_bytes(None, in_dtype="bfloat16"),
      "config=None: expected a MatmulConfig",
    ),
  ],
)
def test_a_wrong_argument_is_named(call, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    call()


def test_models_take_names_as_plan_does():
  gpu = hw.get_profile("h100")
  amounts = {"flops": 1e12, "bytes": 1e9, "dtype": "bfloat16"}
  assert hw.residency("h100", **BLOCK) == hw.residency(gpu, **BLOCK)
  assert hw.in_flight("H100", **LOADS) == hw.in_flight(gpu, **LOADS)
  assert hw.roofline("h100", **amounts) == hw.roofline(gpu, **amounts)
