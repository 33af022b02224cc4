"""The implementations of decode_attention: when each can run, with which tile, and how."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

import hw_profiles
from hw_profiles import DecodeConfig, DecodeProblem
from hw_profiles.attention import cluster_decode
from pallas_kernels import choice, sharding
from pallas_kernels.attention import decode, hopper_decode, support, xla
from pallas_kernels.attention.implementations import count_refusal, planned_refusal
from pallas_kernels.attention.operands import AttentionOperands, DecodeOperands
from pallas_kernels.attention.request import DecodeRequest
from pallas_kernels.choice import Choice
from pallas_kernels.device import TargetDevice, planning_profile, target_device
from pallas_kernels.dispatch import Implementation, Refusal
from pallas_kernels.hopper.refusals import walk_refusal
from pallas_kernels.portable_support import compiled_refusal


def _hopper_refusal(
  one: Implementation, request: DecodeRequest, problem: DecodeProblem, device: TargetDevice
) -> Refusal | None:
  found = walk_refusal(one, device, request.dtype) or count_refusal(problem)
  lacks = cluster_decode.unsupported_problem(problem)
  if found is None and lacks:
    found = Refusal("option", lacks[0].statement)
  parts = cluster_decode.parts_of(problem)
  if found is None and request.num_splits not in (None, *parts):
    found = Refusal(
      "option",
      f"num_splits={request.num_splits}: a cluster has {', '.join(map(str, parts))} blocks",
    )
  config = request.config
  if config is not None and request.num_splits is not None:
    config = dataclasses.replace(config, num_splits=request.num_splits)
  return found or planned_refusal(one, problem, config, device)


def _portable_refusal(
  one: Implementation, request: DecodeRequest, problem: DecodeProblem, device: TargetDevice
) -> Refusal | None:
  found = compiled_refusal(one, device, precision=request.rule.precision)
  if found is None and jnp.dtype(request.dtype).name not in support.DECODE[one.name].dtypes:
    found = Refusal("dtype", "float64 is wider than the kernels' float32 arithmetic")
  return found or count_refusal(problem) or planned_refusal(one, problem, request.config, device)


def _xla_refusal(
  one: Implementation, request: DecodeRequest, problem: DecodeProblem, device: TargetDevice
) -> Refusal | None:
  del one, device
  if request.config is not None:
    return Refusal("option", "config: XLA takes no tile")
  if request.num_splits is not None:
    return Refusal("option", "num_splits: XLA takes all keys of a sequence at once")
  return count_refusal(problem)


def num_splits(
  one: Implementation,
  request: DecodeRequest,
  problem: DecodeProblem,
  config: DecodeConfig,
  device: TargetDevice,
) -> int:
  """Parts of a sequence: the call's, the config's, or the fastest by the planner's model."""
  if request.num_splits is not None:
    return request.num_splits
  if config.num_splits is not None:
    return config.num_splits
  if one.interpreted:
    return 1
  profile, _ = planning_profile(device)
  return hw_profiles.decode_num_splits(problem, config, profile, schedule=one.schedule or "auto")


def _run_hopper(
  one: Implementation,
  request: DecodeRequest,
  operands: DecodeOperands,
  config: DecodeConfig,
  device: TargetDevice,
) -> tuple[jax.Array, jax.Array]:
  parts = num_splits(one, request, request.problem(operands), config, device)
  sizes = operands.sizes
  # under vmap an operand that all share has a leading dimension of 1
  whole = (
    jnp.broadcast_to(x, (sizes.batch, *x.shape[1:]))
    for x in (operands.query, operands.key, operands.value, operands.lengths)
  )
  found = hopper_decode.decode(
    request.rule, DecodeOperands(*whole), config=config, num_splits=parts
  )
  # Mosaic GPU kernels drop the mesh axes that their operands vary over
  out, residual, _ = sharding.vary_together(*found, operands.query)
  return out, residual


def _run_portable(
  one: Implementation,
  request: DecodeRequest,
  operands: DecodeOperands,
  config: DecodeConfig,
  device: TargetDevice,
) -> tuple[jax.Array, jax.Array]:
  parts = num_splits(one, request, request.problem(operands), config, device)
  return decode.decode(
    request.rule, operands, config=config, num_splits=parts, interpret=one.interpreted
  )


def _run_xla(
  one: Implementation,
  request: DecodeRequest,
  operands: DecodeOperands,
  config: DecodeConfig | None,
  device: TargetDevice,
) -> tuple[jax.Array, jax.Array]:
  del one, config, device
  key, value = (_in_order(cache, operands) for cache in (operands.key, operands.value))
  return xla.attention(
    request.rule,
    AttentionOperands(operands.query, key, value, key_lengths=operands.lengths),
  )


def _in_order(cache: jax.Array, operands: DecodeOperands) -> jax.Array:
  """[b, S, K, D]: a cache with each sequence's pages one after another."""
  table = operands.page_table
  if table is None:
    return cache
  pages = cache.shape[1]
  # entries past a sequence's length may hold anything
  table = jnp.clip(table, 0, max(pages - 1, 0))
  rest = cache.shape[3:]
  if pages == 0:
    return jnp.zeros((table.shape[0], operands.sizes.seq_kv, *rest), cache.dtype)
  batch = max(cache.shape[0], table.shape[0])
  if cache.shape[0] == 1:
    found = cache[0][table]
  else:
    found = jax.vmap(lambda one, pages: one[pages])(
      cache, jnp.broadcast_to(table, (batch, table.shape[1]))
    )
  return found.reshape(found.shape[0], operands.sizes.seq_kv, *rest)


def _notes(request: DecodeRequest, problem: DecodeProblem, config: Any) -> tuple[str, ...]:
  del problem
  given = request.num_splits or config.num_splits
  return () if given is None else (f"the keys of a sequence in {given} part(s)",)


_TRITON, _INTERPRET = (
  Implementation(
    name, schedule="multistage", refusal=_portable_refusal, run=_run_portable, notes=_notes
  )
  for name in ("triton", "interpret")
)
_XLA = Implementation("xla", schedule=None, refusal=_xla_refusal, run=_run_xla)

# Not in the Mosaic GPU interpreter, which has no stores to another block's shared memory.
_MOSAIC_GPU = Implementation(
  "mosaic_gpu",
  schedule="warp_specialized",
  refusal=_hopper_refusal,
  run=_run_hopper,
  notes=_notes,
  only_by_name=True,
)

# The best first. On an H200 the Hopper kernel takes 476 us at 64 x 8192 keys where the portable
# one takes 471, and 24 us at 1 x 8192, where parts exchange their states, against 8.1.
TABLE: tuple[Implementation, ...] = (_TRITON, _XLA, _MOSAIC_GPU, _INTERPRET)


def choose(request: DecodeRequest, operands: DecodeOperands, device: TargetDevice) -> Choice:
  """Which implementation and tile serve a request on operands, or on their shapes.

  Raises:
    hw_profiles.InfeasibleTileError, NotImplementedError: see `dispatch.decide`.
  """
  problem = request.problem(operands)
  return choice.choose(
    request.op,
    TABLE,
    requested=request.implementation,
    config=request.config,
    problem=problem,
    device=device,
    refusal=lambda one: one.refusal(one, request, problem, device),
    notes=lambda one, config: one.notes(request, problem, config),
    is_empty=operands.sizes.is_empty,
  )


def run(request: DecodeRequest, operands: DecodeOperands) -> tuple[jax.Array, jax.Array]:
  """out [batch, T, N, Hv] and residual [batch, N, T] of a request."""
  device = target_device()
  chosen = choose(request, operands, device)
  one = _XLA if operands.sizes.is_empty else chosen.implementation
  out, residual = one.run(one, request, operands, chosen.config, device)
  return out, residual
