"""The timers: what is timed, what is left out."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.benchmark import timing


def product(a, b):
  return a @ b


def arrays(size):
  return jnp.ones((size, size)), jnp.full((size, size), 2.0)


@pytest.mark.parametrize("cold_l2", [False, True])
def test_wall_timer_times_every_run(monkeypatch, cold_l2):
  monkeypatch.setattr(timing, "FLUSH_BYTES", 2**20)
  measured = timing.measure(product, arrays(64), iterations=5, timer="wall", cold_l2=cold_l2)
  assert measured.iterations == 5
  assert 0 < measured.minimum_us <= measured.median_us <= measured.maximum_us
  assert measured.timer == "wall"
  assert measured.cold_l2 is cold_l2


def test_device_timer_sums_the_kernels_of_a_run_and_takes_the_median(monkeypatch):
  runs = [[("gemm", 0.003), ("epilogue", 0.001)], [("gemm", 0.009)], [("gemm", 0.005)]]
  monkeypatch.setattr(timing, "_kernels", lambda *_: runs)
  measured = timing.measure(product, arrays(8), iterations=3, timer="device", cold_l2=False)
  assert measured.median_us == pytest.approx(5.0)
  assert measured.minimum_us == pytest.approx(4.0)
  assert measured.maximum_us == pytest.approx(9.0)


def test_call_without_kernels_has_no_time(monkeypatch):
  monkeypatch.setattr(timing, "_kernels", lambda *_: [])
  assert timing.measure(product, arrays(8), iterations=3, timer="device", cold_l2=False) is None


def fake_kernels(monkeypatch, cold_runs):
  """The runs of function and reading together, then the reading kernels alone."""
  answers = iter([cold_runs, [[("reduce", 0.1), ("reduce_1", 0.01)]]])
  monkeypatch.setattr(timing, "_kernels", lambda *_: next(answers))
  monkeypatch.setattr(timing, "FLUSH_BYTES", 2**12)


def test_reading_other_data_is_not_part_of_a_cold_time(monkeypatch):
  run = [("reduce", 0.1), ("gemm", 0.002), ("reduce_1", 0.01)]
  fake_kernels(monkeypatch, [run, run])
  measured = timing.measure(product, arrays(8), iterations=2, timer="device", cold_l2=True)
  assert measured.median_us == pytest.approx(2.0)
  assert measured.cold_l2


# What XLA makes of a program for a GPU: a reduction in two kernels that empties L2, and one
# that is measured and has the name of the first where that is alone.
PROGRAM = """\
HloModule jit_cold, is_scheduled=true

%region_0.3 (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0)
  %b.1 = f32[] parameter(1)
  ROOT %add.3 = f32[] add(%a.1, %b.1)
}

%fused_reduce (p.1: f32[64,128]) -> f32[64] {
  %p.1 = f32[64,128]{1,0} parameter(0)
  %constant.1 = f32[] constant(0)
  ROOT %reduce.1 = f32[64]{0} reduce(%p.1, %constant.1), dimensions={1}, to_apply=%region_0.3
}

%region_1.5 (a.2: u32[], b.2: u32[]) -> u32[] {
  %a.2 = u32[] parameter(0)
  %b.2 = u32[] parameter(1)
  ROOT %xor.3 = u32[] xor(%a.2, %b.2), metadata={op_name="jit(cold)/reduce_xor"}
}

%fused_reduce.1 (p.2: u32[67108864]) -> u32[8192] {
  %p.2 = u32[67108864]{0} parameter(0)
  %bitcast.1 = u32[8192,8192]{1,0} bitcast(%p.2)
  %constant.2 = u32[] constant(0)
  ROOT %reduce.2 = u32[8192]{0} reduce(%bitcast.1, %constant.2), dimensions={1}, to_apply=%region_1.5
}

%wrapped_reduce_computation (p.3: u32[8192], p.4: u32[]) -> u32[] {
  %p.3 = u32[8192]{0} parameter(0)
  %p.4 = u32[] parameter(1)
  ROOT %reduce.3 = u32[] reduce(%p.3, %p.4), dimensions={0}, to_apply=%region_1.5
}

ENTRY %main.9 (scratch.1: u32[67108864], x.1: f32[64,128]) -> (u32[], f32[64]) {
  %x.1 = f32[64,128]{1,0} parameter(1)
  %scratch.1 = u32[67108864]{0} parameter(0)
  %input_reduce_fusion = f32[64]{0} fusion(%x.1), kind=kInput, calls=%fused_reduce
  %input_reduce_fusion.1 = u32[8192]{0} fusion(%scratch.1), kind=kInput, calls=%fused_reduce.1
  %constant.3 = u32[] constant(0)
  %wrapped_reduce = u32[] fusion(%input_reduce_fusion.1, %constant.3), kind=kInput, calls=%wrapped_reduce_computation
  ROOT %tuple = (u32[], f32[64]{0}) tuple(%wrapped_reduce, %input_reduce_fusion)
}
"""  # noqa: E501


def test_kernels_that_empty_l2_are_found_in_the_program_whatever_their_names_are():
  assert timing.flush_kernels(PROGRAM) == ["input_reduce_fusion_1", "wrapped_reduce"]
  assert timing.flush_kernels(PROGRAM.replace("xor(", "or(")) == []


def test_the_program_that_jax_compiles_names_its_kernels_that_empty_l2(monkeypatch):
  monkeypatch.setattr(timing, "FLUSH_BYTES", 2**22)
  compiled = timing.compiled_for_device_timer(
    lambda x: (x.sum(0), x.max(-1)), arrays(64)[:1], cold_l2=True
  )
  found = timing.flush_kernels(compiled.as_text())
  assert found
  for name in found:
    pattern = re.compile(rf"\s+(ROOT )?%{name.replace('_', '[-._]')} = (.*?) (fusion|reduce)")
    (kernel,) = filter(None, map(pattern.match, compiled.as_text().splitlines()))
    assert kernel.group(2).startswith("u32[")


def test_a_kernel_with_the_name_of_one_that_empties_l2_is_measured(monkeypatch):
  run = [("input_reduce_fusion", 0.005), ("input_reduce_fusion_1", 0.06), ("wrapped_reduce", 0.001)]
  alone = [("input_reduce_fusion", 0.06), ("wrapped_reduce", 0.001)]
  answers = iter([[run, run], [alone]])
  monkeypatch.setattr(timing, "_kernels", lambda *_: next(answers))
  monkeypatch.setattr(timing, "FLUSH_BYTES", 2**12)
  monkeypatch.setattr(jax.stages.Compiled, "as_text", lambda self: PROGRAM)
  measured = timing.measure(product, arrays(8), iterations=2, timer="device", cold_l2=True)
  assert (measured.median_us, measured.launches) == (pytest.approx(5.0), 1)


def test_kernel_that_cannot_be_told_from_the_reading_one_is_an_error(monkeypatch):
  fake_kernels(monkeypatch, [[("reduce", 0.1), ("reduce", 0.2), ("reduce_1", 0.01)]])
  with pytest.raises(RuntimeError, match="cold_l2: cannot tell"):
    timing.measure(product, arrays(8), iterations=1, timer="device", cold_l2=True)


def test_missing_argument_stays_missing_on_the_device():
  seen = []

  def call(a, b, bias):
    seen.append(bias)
    return a + b

  function, device_arrays = timing.on_device(call, np.ones(3), np.ones(3), None)
  assert len(device_arrays) == 2
  assert all(isinstance(array, jax.Array) for array in device_arrays)
  np.testing.assert_array_equal(function(*device_arrays), 2 * np.ones(3))
  assert seen == [None]


@pytest.mark.gpu
@pytest.mark.parametrize("cold_l2", [False, True])
def test_device_timer_agrees_with_the_wall_clock_on_long_work(cold_l2):
  operands = (jnp.ones((8192, 8192), jnp.bfloat16), jnp.ones((8192, 8192), jnp.bfloat16))
  device = timing.measure(product, operands, iterations=10, timer="device", cold_l2=cold_l2)
  wall = timing.measure(product, operands, iterations=10, timer="wall", cold_l2=cold_l2)
  # a millisecond of work: launch and completion are a few per cent of it
  assert 0.5 * wall.median_us < device.median_us <= wall.median_us
