"""The tile configurations of attention, which the kernels and the planner read.

They hold numbers only, and live here rather than beside the kernels because the
planner must read them without importing JAX.
"""

import dataclasses

from hw_profiles import tile_config
from hw_profiles.arguments import whole_field


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
  """How `flash_attention` is cut and staged, forward and backward.

  Forward, one program (a thread block on an SM, an AIC core with its AIV cores
  on Ascend) computes `block_q` rows of O for one head, walking the keys it sees
  in blocks of `block_kv` with `num_stages` K and V blocks in flight. Backward
  there are two kernels, so that no gradient is summed by atomics: "dkv" keeps
  `block_kv_dkv` rows of dK and dV and walks queries in blocks of `block_q_dkv`;
  "dq" keeps `block_q_dq` rows of dQ and walks keys in blocks of `block_kv_dq`.
  The Hopper kernel is one: "dkv", which adds to dQ in memory, in the order of the keys.
  `flash_attention` leaves the gradients of a config with none of these four to the planner.
  Sizes are in elements. No block has to divide the problem.

  Attributes:
    block_q: Query rows of a program.
    block_kv: Keys and values of a step.
    num_stages: Blocks of each streamed operand held at once: shared-memory
      stages on an SM (K and V forward and in "dq", Q and dO in "dkv"), L1
      buffers on Ascend. 1 means no overlap of copy and compute.
    num_consumer_warpgroups: wgmma warpgroups of the Hopper kernels, which share
      the rows of a program and take turns at the tensor cores. None: one for
      each 64 rows, at most 3 and only as many as get whole 64-row wgmmas each.
      Only "warp_specialized" reads it.
    num_warps: Warps of a thread block of the portable kernel's Triton lowering.
      None: 8 from 128 rows a program on, else 4. Only "multistage" reads it.
    block_q_dkv: Query rows of a step of "dkv"; None: 64. Only backward.
    block_kv_dkv: Keys of a program of "dkv"; None: 128. Only backward.
    block_q_dq: Query rows of a program of "dq"; None: 128. Only backward.
    block_kv_dq: Keys of a step of "dq"; None: 64. Only backward.
  """

  block_q: int
  block_kv: int
  num_stages: int = 2
  num_consumer_warpgroups: int | None = dataclasses.field(default=None, kw_only=True)
  num_warps: int | None = dataclasses.field(default=None, kw_only=True)
  block_q_dkv: int | None = dataclasses.field(default=None, kw_only=True)
  block_kv_dkv: int | None = dataclasses.field(default=None, kw_only=True)
  block_q_dq: int | None = dataclasses.field(default=None, kw_only=True)
  block_kv_dq: int | None = dataclasses.field(default=None, kw_only=True)

  def __post_init__(self) -> None:
    _check_fields(self, ("block_q", "block_kv", "num_stages"))

  def describe(self) -> str:
    """The config as `name=value` pairs, defaults left out: what `--tile` takes."""
    return tile_config.describe(self)


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
  """How `decode_attention` is cut, split and staged.

  One program computes all query heads of one key head, as rows of one tile, on
  one part of a sequence's keys; a second pass merges the parts in order.

  Attributes:
    block_kv: Keys and values of a step; with pages it divides or is a multiple
      of the page size.
    num_splits: Parts that each sequence is cut into, whole blocks each. None:
      as many as the model finds fastest: `decode_num_splits`. The Hopper kernel
      takes 1, 2, 4, 8 or 16, the blocks of a cluster.
    num_stages: K and V blocks held at once.
    num_warps: Warps of a thread block of the portable kernel's Triton lowering.
      None: 4. Only "multistage" reads it.
  """

  block_kv: int
  num_splits: int | None = None
  num_stages: int = 2
  num_warps: int | None = dataclasses.field(default=None, kw_only=True)

  def __post_init__(self) -> None:
    _check_fields(self, ("block_kv", "num_stages"))

  def describe(self) -> str:
    """The config as `name=value` pairs, defaults left out: what `--tile` takes."""
    return tile_config.describe(self)


def _check_fields(config: AttentionConfig | DecodeConfig, needed: tuple[str, ...]) -> None:
  """Every field an int of at least 1; those not in `needed` may be None."""
  for field in dataclasses.fields(config):
    if field.name in needed or getattr(config, field.name) is not None:
      whole_field(config, field.name, 1)
