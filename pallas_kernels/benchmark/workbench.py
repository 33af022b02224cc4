"""Compiles, verifies and measures the tiles of one workload on the GPU that JAX uses."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.benchmark import rows, runner, timing
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.workload import Workload
from pallas_kernels.tuning import search

# A compilation takes about a second, most of it outside of Python.
_MOST_THREADS = 16
# Compiled one after the other, measured one after the other: the clock is up.
_WARM_UP_S = 0.02


class Workbench:
  """What `tuning.search` asks of a device, for one workload.

  The operands are drawn on the device when the first tile is compiled.
  """

  def __init__(self, options: Options, workload: Workload, implementation: str) -> None:
    """Nothing is drawn or compiled yet."""
    self._options = options
    self._workload = workload
    self._implementation = implementation
    self._operands: tuple[Any, ...] | None = None
    self._arrays: tuple[jax.Array, ...] = ()
    self._compiled: dict[Any, jax.stages.Compiled] = {}
    self._verified: Any = None

  def prepare(self, configs: Sequence[Any]) -> dict[Any, str]:
    """Compiles them in parallel; the reason of each that does not compile."""
    if self._operands is None:
      workload = self._workload
      self._operands = workload.op.device_operands(workload.shape, workload.dtype, workload.options)
      self._arrays = timing.placed(self._operands, workload.op.transposed_operands)
    functions = [self._function(config) for config in configs]
    threads = min(_MOST_THREADS, os.cpu_count() or 1, len(configs))
    with ThreadPoolExecutor(max(threads, 1)) as pool:
      outcomes = list(pool.map(self._compile, functions))
    reasons = {}
    for config, outcome in zip(configs, outcomes, strict=True):
      if isinstance(outcome, str):
        reasons[config] = outcome
      else:
        self._compiled[config] = outcome
    return reasons

  def verify(self, config: Any) -> tuple[str | None, str]:
    """Why the result is wrong, or None; and how that was found out.

    A sample of the first right result is held against float64. Tiles that add
    up in the same order give the same bits, so most of the others are compared
    with that, all of it; one that differs is held against float64 itself.
    """
    if self._options.check == "none":
      return None, rows.NOT_RUN
    with _running():
      result = timing.result_of(self._compiled[config], self._arrays, cold_l2=self._options.cold_l2)
    if self._verified is not None and _same_bits(self._verified, result):
      return None, "the bits of another tile that passed"
    failure = self._against_float64(result, config)
    if failure is None and self._verified is None:
      self._verified = result
    return failure, "float64"

  def measure(self, config: Any) -> float:
    """Median device time, microseconds."""
    with _running():
      measured = timing.measure_compiled(
        self._compiled[config],
        self._arrays,
        iterations=self._options.iterations,
        cold_l2=self._options.cold_l2,
        warm_up_s=_WARM_UP_S,
      )
    if measured is None:
      raise RuntimeError(f"{self._workload.name}: the call starts no kernel, there is no time")
    return measured.median_us

  def _function(self, config: Any) -> Any:
    assert self._operands is not None
    op = self._workload.op
    call = op.call(self._workload.options, config=config, implementation=self._implementation)
    return timing.taking_placed(call, self._operands, op.transposed_operands)

  def _compile(self, function: Any) -> jax.stages.Compiled | str:
    try:
      return timing.compiled_for_device_timer(function, self._arrays, cold_l2=self._options.cold_l2)
    except Exception as error:  # whatever the compiler raises, the others go on
      return f"does not compile: {type(error).__name__}: {_first_line(error)}"

  def _against_float64(self, result: Any, config: Any) -> str | None:
    assert self._operands is not None
    workload = self._workload
    part = workload.sample()
    sample = [None if x is None else np.asarray(x) for x in workload.op.cut(self._operands, part)]
    actual = jax.tree.map(np.asarray, workload.op.cut_result(result, part))
    verdict = workload.op.check(
      actual,
      tuple(sample),
      workload.options,
      ran=self._implementation,
      config=config,
      platform=runner.platform(),
    )
    if verdict.check != rows.FAILED:
      return None
    return f"wrong: {' '.join(verdict.notes)}"


@contextlib.contextmanager
def _running() -> Iterator[None]:
  """Raises CandidateError, or DeviceLostError, where JAX says that a kernel failed."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    reason = f"does not run: {_first_line(error)}"
    try:
      jax.block_until_ready(jnp.zeros(1) + 1)
    except jax.errors.JaxRuntimeError:
      raise search.DeviceLostError(reason) from error
    raise search.CandidateError(reason) from error


def _same_bits(one: Any, other: Any) -> bool:
  pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  return all(bool(jnp.array_equal(x, y)) for x, y in pairs)


def _first_line(error: BaseException) -> str:
  return next(iter(str(error).strip().splitlines()), "")[:300]
