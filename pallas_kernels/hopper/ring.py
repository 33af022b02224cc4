"""A ring of shared-memory stages between one memory warpgroup and its consumers.

Each stage has two barriers. `full` completes when all copies into the stage
have arrived; `empty` when every consumer has let go of it. The memory
warpgroup runs ahead by the number of stages; steps are counted across output
tiles, so that it does not stop at their borders.

In a cluster a copy may land in the shared memory of all its thread blocks, so
there a stage is free only when the consumers of all of them have let go.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


@dataclasses.dataclass(frozen=True)
class StageRing:
  """The two sides of the ring; `step` is an int32 count from 0.

  Attributes:
    num_stages: Stages in shared memory.
    full: Barrier reference, one a stage.
    empty: Barrier reference, one a stage.
  """

  num_stages: int
  full: Any
  empty: Any

  @staticmethod
  def barriers(
    *, num_stages: int, copies: int, consumers: int, cluster_axis: str | None = None
  ) -> tuple[Any, Any]:
    """Scratch types of (`full`, `empty`) for `copies` copies a stage.

    Args:
      num_stages: Stages in shared memory.
      copies: Copies that fill a stage.
      consumers: Consumer warpgroups of a thread block.
      cluster_axis: The axis of the cluster whose blocks fill each other's
        stages; None: each block fills its own.
    """
    full = plgpu.Barrier(num_barriers=num_stages, num_arrivals=copies)
    if cluster_axis is None:
      return full, plgpu.Barrier(num_barriers=num_stages, num_arrivals=consumers)
    return full, plgpu.ClusterBarrier(
      collective_axes=(cluster_axis,), num_barriers=num_stages, num_arrivals=consumers
    )

  def stage(self, step: Any) -> Any:
    """The stage that serves a step."""
    # int32 by name: with jax_enable_x64 a Python int would be 64 bits wide
    return lax.rem(step, jnp.int32(self.num_stages))

  def arrivals(self, stage: Any) -> Any:
    """The barrier at which a stage's copies arrive."""
    return self.full.at[stage]

  def fill(self, step: Any, copy: Callable[[Any, Any], None]) -> None:
    """Memory side: wait until the stage is free, then `copy(stage, full barrier)` into it."""
    stage = self.stage(step)

    @pl.when(step >= self.num_stages)
    def _wait_until_released() -> None:
      plgpu.barrier_wait(self.empty.at[stage])

    copy(stage, self.arrivals(stage))

  def drain(self, steps: Any) -> None:
    """Memory side: see every release before leaving.

    The interpreter checks that no barrier is abandoned in mid-phase, and a block
    of a cluster must not end while its neighbours still arrive at its barriers.
    """
    for stage in range(self.num_stages):

      @pl.when(stage < steps)
      def _wait_for_the_last_release(stage: int = stage) -> None:
        plgpu.barrier_wait(self.empty.at[stage])

  def wait(self, step: Any) -> Any:
    """Consumer side: wait until the step's stage is full; returns the stage."""
    stage = self.stage(step)
    plgpu.barrier_wait(self.full.at[stage])
    return stage

  def release(self, step: Any) -> None:
    """Consumer side: let go of the step's stage."""
    plgpu.barrier_arrive(self.empty.at[self.stage(step)])
