"""The device that JAX has here: what would run on it, and running it."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import hw_profiles
from pallas_kernels import device
from pallas_kernels.benchmark.ops.op import Config, Function, Operands, Shape
from pallas_kernels.benchmark.workload import Workload


@dataclasses.dataclass(frozen=True)
class Selection:
  """What would run, or why nothing would.

  Attributes:
    implementation: The name; None where it is refused.
    config: The tile that runs; None where the implementation takes none.
    plan: The planner's view of that kernel on the device here; None where it
      has no profile, or nothing compiles for it.
    reason: Why it is refused.
    notes: What else happens, for example a padding copy.
    requested: The name that the public function is called with; None: none, so that
      it decides for itself, of gradients, too, which may have another kernel.
  """

  implementation: str | None
  config: Config | None = None
  plan: hw_profiles.TilePlan | None = None
  reason: str | None = None
  notes: tuple[str, ...] = ()
  requested: str | None = None


def platform() -> str:
  """Where JAX runs here: "cpu" or "gpu"."""
  return device.target_device().platform


def device_profile() -> str | None:
  """Name of the hardware profile of the device that JAX uses; None where there is none."""
  found = hw_profiles.profile_for_device_kind(device.target_device().kind)
  return None if found is None else found.name


def default_implementation() -> str | None:
  """None, that is dispatch's choice, on a GPU; "interpret" elsewhere.

  Left to itself dispatch takes XLA where no kernel compiles, which would check
  XLA and not the kernel.
  """
  return None if platform() == "gpu" else "interpret"


def select(
  workload: Workload, part: Shape, config: Config | None, implementation: str | None
) -> Selection:
  """Which implementation and tile would run on a part of the problem, without running it."""
  op = workload.op
  if workload.dtype in op.planned_dtypes:
    return Selection(
      implementation=None,
      reason=f"{workload.dtype} operands: {op.name} is planned with them, its kernels take "
      f"{', '.join(op.run_dtypes)}",
    )
  try:
    explanation = op.explain(
      part, workload.dtype, workload.options, config=config, implementation=implementation
    )
  except (ValueError, NotImplementedError) as error:
    return Selection(implementation=None, reason=str(error))
  return Selection(
    implementation=explanation.implementation,
    config=explanation.config,
    plan=explanation.plan if part == workload.shape else None,
    notes=explanation.notes,
    requested=implementation,
  )


@contextlib.contextmanager
def exhaustion_as_memory_error() -> Iterator[None]:
  """Raises MemoryError where JAX says that a device has no room."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" in str(error):
      raise MemoryError(str(error)) from error
    raise


def result(function: Function, operands: Operands) -> Any:
  """The result on the host, an array or a tuple of them.

  Raises:
    MemoryError: the device, or the host, has no room for it.
  """
  with exhaustion_as_memory_error():
    return jax.tree.map(np.asarray, jax.block_until_ready(jax.jit(function)(*operands)))
