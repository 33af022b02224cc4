"""The implementations of flash_attention and of its gradients: when each can run, and how."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax

from hw_profiles import AttentionConfig, AttentionProblem, DecodeProblem, InfeasibleTileError
from pallas_kernels import choice, compat, dispatch, planning, sharding
from pallas_kernels.attention import (
  hopper,
  hopper_backward,
  hopper_layout,
  portable,
  portable_backward,
  portable_bias,
  support,
  xla,
)
from pallas_kernels.attention.operands import AttentionOperands, Upstream
from pallas_kernels.attention.request import AttentionRequest
from pallas_kernels.choice import Choice
from pallas_kernels.device import TargetDevice, cores_of, target_device
from pallas_kernels.dispatch import Implementation, Refusal
from pallas_kernels.hopper.refusals import walk_refusal
from pallas_kernels.portable_support import compiled_refusal, offset_refusal

Arrays = tuple[jax.Array, ...]

# Thread blocks of a persistent kernel in the interpreter: two show what they share
_INTERPRETED_CTAS = 2

# The fields of a config that the gradients read; without any of them the planner chooses theirs.
_BACKWARD_FIELDS = ("block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")


def _unsupported(
  one: Implementation, problem: AttentionProblem, operands: AttentionOperands
) -> Refusal | None:
  """What `support`'s table says that the implementation lacks."""
  table = support.BACKWARD if problem.backward else support.FORWARD
  return table[one.name].refusal(operands) or count_refusal(problem)


def count_refusal(problem: AttentionProblem | DecodeProblem) -> Refusal | None:
  """Of more than is counted to, by XLA's masks as by kernels."""
  return (
    dispatch.count_refusal(keys=problem.seq_kv)
    or dispatch.count_refusal(queries=problem.seq_q)
    or dispatch.count_refusal(batch=problem.batch, heads=problem.heads, queries=problem.seq_q)
  )


def _hopper_refusal(
  one: Implementation,
  request: AttentionRequest,
  problem: AttentionProblem,
  device: TargetDevice,
  operands: AttentionOperands,
) -> Refusal | None:
  found = walk_refusal(one, device, request.dtype)
  found = found or _unsupported(one, problem, operands)
  return found or planned_refusal(one, problem, request.config, device)


def _portable_refusal(
  one: Implementation,
  request: AttentionRequest,
  problem: AttentionProblem,
  device: TargetDevice,
  operands: AttentionOperands,
) -> Refusal | None:
  found = compiled_refusal(one, device, precision=request.rule.precision)
  found = found or _unsupported(one, problem, operands)
  if found is None and operands.mask is not None:
    found = offset_refusal(one, "mask", math.prod(operands.mask.shape))
  return found or planned_refusal(one, problem, request.config, device)


def planned_refusal(
  one: Implementation, problem: Any, config: Any | None, device: TargetDevice
) -> Refusal | None:
  """Why the user's tile does not run, or that there is none which fits."""
  found = planning.tile_refusal(one, problem, config, device)
  is_empty = 0 in (problem.batch, problem.seq_q, problem.seq_kv)
  if found is not None or config is not None or is_empty:
    return found
  try:
    planning.resolve(one, problem, None, device)
  except InfeasibleTileError as error:
    return Refusal("tile", str(error))
  return None


def _xla_refusal(
  one: Implementation,
  request: AttentionRequest,
  problem: AttentionProblem,
  device: TargetDevice,
  operands: AttentionOperands,
) -> Refusal | None:
  del one, device, operands
  if request.config is not None:
    return Refusal("option", "config: XLA takes no tile")
  return count_refusal(problem)


def _run_hopper(
  one: Implementation,
  request: AttentionRequest,
  operands: AttentionOperands,
  config: AttentionConfig,
  device: TargetDevice,
) -> Arrays:
  sms = cores_of(device)
  found = hopper.attention(
    request.rule,
    operands,
    config=config,
    num_ctas=_INTERPRETED_CTAS if one.interpreted else sms,
    interpret=compat.gpu_interpret_params() if one.interpreted else None,
  )
  # Mosaic GPU kernels drop the mesh axes that their operands vary over
  out, residual, *doubt = sharding.vary_together(
    *(x for x in found if x is not None), operands.query
  )[:-1]
  if not doubt:
    return out, residual
  return portable.mend(
    request.rule,
    operands,
    portable.Doubtful(out, residual, *doubt),
    interpret=one.interpreted,
  )


def _hopper_notes(
  request: AttentionRequest, problem: AttentionProblem, config: AttentionConfig
) -> tuple[str, ...]:
  del request
  return hopper_layout.padding_notes(problem, config)


def _run_portable(
  one: Implementation,
  request: AttentionRequest,
  operands: AttentionOperands,
  config: AttentionConfig,
  device: TargetDevice,
) -> Arrays:
  del device
  return portable.attention(request.rule, operands, config=config, interpret=one.interpreted)


def _run_xla(
  one: Implementation,
  request: AttentionRequest,
  operands: AttentionOperands,
  config: AttentionConfig | None,
  device: TargetDevice,
) -> Arrays:
  del one, config, device
  return xla.attention(request.rule, operands)


@dataclasses.dataclass(frozen=True)
class GradientCall:
  """Which gradients are wanted: those of query, key and value, or that of the bias.

  Attributes:
    operands: Of the forward pass.
    upstream: What came from it and from above.
    bias_groups: None: of query, key and value. Else of the bias, for as many
      parts of the batch.
  """

  operands: AttentionOperands
  upstream: Upstream
  bias_groups: int | None = None


def _run_portable_gradients(
  one: Implementation,
  request: AttentionRequest,
  call: GradientCall,
  config: AttentionConfig,
  device: TargetDevice,
) -> Arrays:
  del device
  how: dict[str, Any] = {"config": config, "interpret": one.interpreted}
  at = (request.rule, call.operands, call.upstream)
  if call.bias_groups is not None:
    return (portable_bias.bias_gradient(*at, groups=call.bias_groups, **how),)
  return (
    portable_backward.query_gradient(*at, **how),
    *portable_backward.key_value_gradients(*at, **how),
  )


def _run_hopper_gradients(
  one: Implementation,
  request: AttentionRequest,
  call: GradientCall,
  config: AttentionConfig,
  device: TargetDevice,
) -> Arrays:
  del device
  at = (request.rule, call.operands, call.upstream)
  found = hopper_backward.gradients(
    *at, config=config, interpret=compat.gpu_interpret_params() if one.interpreted else None
  )
  # Mosaic GPU kernels drop the mesh axes that their operands vary over
  d_query, d_key, d_value, *doubts = sharding.vary_together(
    *(x for x in found if x is not None), call.operands.query
  )[:-1]
  if not doubts:
    return d_query, d_key, d_value
  query_doubt, key_doubt = doubts
  how: dict[str, Any] = {"config": portable.MENDING, "interpret": one.interpreted}
  return (
    portable_backward.query_gradient(
      *at, given=portable_backward.Doubted((d_query,), query_doubt), **how
    ),
    *portable_backward.key_value_gradients(
      *at, given=portable_backward.Doubted((d_key, d_value), key_doubt), **how
    ),
  )


def _run_xla_gradients(
  one: Implementation,
  request: AttentionRequest,
  call: GradientCall,
  config: AttentionConfig | None,
  device: TargetDevice,
) -> Arrays:
  del one, config, device
  at = (request.rule, call.operands, call.upstream)
  if call.bias_groups is not None:
    return (xla.bias_gradient(*at, groups=call.bias_groups),)
  return xla.gradients(*at)


_MOSAIC_GPU, _MOSAIC_GPU_INTERPRET = (
  Implementation(
    name,
    schedule="warp_specialized",
    refusal=_hopper_refusal,
    run=_run_hopper,
    notes=_hopper_notes,
  )
  for name in ("mosaic_gpu", "mosaic_gpu_interpret")
)
_TRITON, _INTERPRET = (
  Implementation(name, schedule="multistage", refusal=_portable_refusal, run=_run_portable)
  for name in ("triton", "interpret")
)
_XLA = Implementation("xla", schedule=None, refusal=_xla_refusal, run=_run_xla)

# The best first.
FORWARD: tuple[Implementation, ...] = (
  _MOSAIC_GPU,
  _TRITON,
  _XLA,
  _INTERPRET,
  _MOSAIC_GPU_INTERPRET,
)

_HOPPER_GRADIENTS = {"run": _run_hopper_gradients}
_GRADIENT_FIELDS: dict[str, dict[str, Any]] = {
  "mosaic_gpu": _HOPPER_GRADIENTS,
  "triton": {"run": _run_portable_gradients},
  "interpret": {"run": _run_portable_gradients},
  "xla": {"run": _run_xla_gradients},
  "mosaic_gpu_interpret": _HOPPER_GRADIENTS,
}
BACKWARD: tuple[Implementation, ...] = tuple(
  dataclasses.replace(one, **_GRADIENT_FIELDS[one.name]) for one in FORWARD
)


def for_gradients(
  request: AttentionRequest, operands: AttentionOperands, device: TargetDevice
) -> AttentionRequest:
  """The request as the gradients' implementations take it.

  A Hopper kernel that was asked for by name leaves gradients that its backward
  kernel lacks, such as those of larger heads, to the portable ones: they are
  no reason to refuse the forward pass.
  """
  config, name = request.config, request.implementation
  if config is not None and not any(getattr(config, field) for field in _BACKWARD_FIELDS):
    config = None
  request = dataclasses.replace(request, config=config)
  otherwise = None if name is None else support.BACKWARD[name].otherwise
  if otherwise is not None:
    one = next(known for known in BACKWARD if known.name == name)
    problem = request.problem(operands, backward=True)
    refused = one.refusal(one, request, problem, device, operands)
    # a tile that was asked for is not replaced
    if refused is not None and (request.config is None or not refused.of_tile):
      request = dataclasses.replace(request, implementation=otherwise)
  return request


def choose(
  request: AttentionRequest,
  operands: AttentionOperands,
  device: TargetDevice,
  *,
  table: Sequence[Implementation] = FORWARD,
) -> Choice:
  """Which implementation and tile serve a request on operands, or on their shapes.

  Raises:
    hw_profiles.InfeasibleTileError, NotImplementedError: see `dispatch.decide`.
  """
  problem = request.problem(operands, backward=table is BACKWARD)
  return choice.choose(
    request.op,
    table,
    requested=request.implementation,
    config=request.config,
    problem=problem,
    device=device,
    refusal=lambda one: one.refusal(one, request, problem, device, operands),
    notes=lambda one, config: one.notes(request, problem, config),
    is_empty=operands.sizes.is_empty,
  )


def run(request: AttentionRequest, operands: AttentionOperands) -> tuple[jax.Array, jax.Array]:
  """out [batch, T, N, Hv] and residual [batch, N, T] of a request."""
  device = target_device()
  chosen = choose(request, operands, device)
  # without a pair of a query and a key there is nothing for a kernel to do
  one = _XLA if operands.sizes.is_empty else chosen.implementation
  out, residual = one.run(one, request, operands, chosen.config, device)
  return out, residual


def run_gradients(request: AttentionRequest, call: GradientCall) -> Arrays:
  """dQ, dK and dV over the batch, or the bias's gradient over its groups."""
  device = target_device()
  request = for_gradients(request, call.operands, device)
  chosen = choose(request, call.operands, device, table=BACKWARD)
  one = chosen.implementation
  if call.operands.sizes.is_empty:
    one = next(known for known in BACKWARD if known.name == "xla")
  return tuple(one.run(one, request, call, chosen.config, device))
