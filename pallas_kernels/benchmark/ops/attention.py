"""What the attention ops have in common, as the benchmark sees them."""

import abc
from collections.abc import Mapping
from typing import Any, TypeVar

import hw_profiles
from pallas_kernels.benchmark import cells
from pallas_kernels.benchmark.ops.attention_peers import PEERS
from pallas_kernels.benchmark.ops.attention_sample import AttentionSample
from pallas_kernels.benchmark.ops.op import Config, Operands, PublicOp, Shape

FLOAT_DTYPES = ("bfloat16", "float16", "float32")

S = TypeVar("S", bound=Shape)
C = TypeVar("C", bound=Config)
O = TypeVar("O")  # noqa: E741


class AttentionOp(PublicOp[S, C, O]):
  """An op of `pallas_kernels.attention`: its plan, its operands."""

  peers = PEERS

  @abc.abstractmethod
  def problem(self, shape: S, dtype: str, options: O) -> Any:
    """The planner's description of the problem."""

  @abc.abstractmethod
  def judged(self, operands: tuple[Any, ...], options: O) -> AttentionSample:
    """The queries that a check holds against float64."""

  # --- the planner's side

  def describe_plan(self, plan: hw_profiles.TilePlan) -> tuple[str, ...]:
    """Programs and rounds, bytes of Q, K, V and O, and what the unfused program would move."""
    traffic = plan.traffic
    assert isinstance(traffic, hw_profiles.AttentionTraffic)
    blocks, heads = plan.grid
    return (
      f"programs: {blocks} blocks x {heads} heads, {traffic.state_updates:,} steps in all; "
      f"resident at once: {plan.resident_blocks}; waves: {plan.waves}, "
      f"{plan.tail_efficiency:.0%} full",
      f"working set: {cells.kib(traffic.working_set_bytes)} KiB; traffic: "
      f"streamed {cells.mib(traffic.kv_read_bytes)} + kept {cells.mib(traffic.q_read_bytes)} + "
      f"written {cells.mib(traffic.o_write_bytes)} = {cells.mib(traffic.total_bytes)} MiB, "
      f"{traffic.intensity:.1f} FLOP/B; needed once {cells.mib(traffic.required_bytes)} MiB, "
      f"scores in memory would add {cells.mib(traffic.unfused_intermediate_bytes)} MiB",
    )

  def plan_details(self, plan: hw_profiles.TilePlan) -> Mapping[str, int]:
    """How often keys are swept, and how often the running softmax is brought up to date."""
    traffic = plan.traffic
    assert isinstance(traffic, hw_profiles.AttentionTraffic)
    return {"sweeps": traffic.sweeps, "state_updates": traffic.state_updates}

  def flops(self, shape: S) -> int:
    """Of the forward without a mask."""
    count: int = self.problem(shape, self.dtypes[0], self.options_class()).flops
    return count

  # --- operands

  def operands(self, shape: S, dtype: str, options: O) -> Operands:
    """As `Op.operands`; on a GPU drawn there: a cache of 2 GB takes a CPU half a minute."""
    from pallas_kernels import device

    if device.target_device().platform == "gpu":
      return self.device_operands(shape, dtype, options)
    return super().operands(shape, dtype, options)
