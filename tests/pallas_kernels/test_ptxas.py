"""Registers and spills as ptxas prints them."""

import jax
import pytest

from hw_profiles import MatmulConfig
from hw_profiles.frozen_map import FrozenMap
from pallas_kernels.lowering import CompileTask, compile_task
from pallas_kernels.lowering.ptxas import PtxasResources, parse

_LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'mosaic_gpu_kernel' for 'sm_90a'
ptxas info    : Function properties for mosaic_gpu_kernel
    16 bytes stack frame, 12 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 168 registers, used 5 barriers, 16 bytes cumulative stack size
"""
_TASK = CompileTask(
  "matmul",
  FrozenMap(m=512, k=512, n=512),
  "bfloat16",
  MatmulConfig(128, 256, 64, 4),
  "h200_sxm",
)


def test_registers_and_spills_are_read():
  assert parse(_LOG) == PtxasResources(168, spill_store_bytes=12, spill_load_bytes=24)


def test_other_output_says_nothing():
  assert parse("no GPU") is None


def test_without_a_gpu_they_are_not_known():
  if jax.default_backend() == "gpu":
    pytest.skip("there is one")
  answer = compile_task(_TASK)
  assert answer.accepted
  assert answer.ptxas is None


@pytest.mark.gpu
def test_on_an_h200_nothing_spills():
  answer = compile_task(_TASK)
  assert answer.ptxas is not None
  # 384 threads share 65536 registers
  assert 64 <= answer.ptxas.registers <= 168
  assert answer.ptxas.spill_store_bytes == answer.ptxas.spill_load_bytes == 0
