"""The timers: what is timed, what is left out."""

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
  """The reading kernel alone at first, then the runs of function and reading together."""
  answers = iter([[[("reduce", 0.1), ("reduce_1", 0.01)]], cold_runs])
  monkeypatch.setattr(timing, "_kernels", lambda *_: next(answers))
  monkeypatch.setattr(timing, "FLUSH_BYTES", 2**12)


def test_reading_other_data_is_not_part_of_a_cold_time(monkeypatch):
  run = [("reduce", 0.1), ("gemm", 0.002), ("reduce_1", 0.01)]
  fake_kernels(monkeypatch, [run, run])
  measured = timing.measure(product, arrays(8), iterations=2, timer="device", cold_l2=True)
  assert measured.median_us == pytest.approx(2.0)
  assert measured.cold_l2


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
