"""The implementations of matmul: when each can run, with which tile, and how."""

import dataclasses

import jax
import jax.numpy as jnp

from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels import choice, compat, planning, sharding
from pallas_kernels.choice import Choice
from pallas_kernels.device import TargetDevice, planning_profile, target_device
from pallas_kernels.dispatch import Implementation, Refusal
from pallas_kernels.dtypes import sum_dtype
from pallas_kernels.gemm import hopper, hopper_layout, portable, split_k, xla
from pallas_kernels.gemm.epilogue import Epilogue, complete
from pallas_kernels.gemm.operands import Operands
from pallas_kernels.gemm.request import GemmRequest
from pallas_kernels.hopper.refusals import device_refusal, wide_operand_refusal
from pallas_kernels.portable_support import compiled_refusal

# Rows assumed by `batch_invariant=True`, whatever M is: the config, and with it
# the order of the sum, must not depend on M.
_INVARIANT_ROWS = 1024
# Blocks the Mosaic interpreter simulates: enough for a persistent loop to have
# neighbours, few enough to be quick.
_INTERPRETED_CTAS = 2


def _kernel_refusal(request: GemmRequest) -> Refusal | None:
  """What no kernel of this family does."""
  for name, dtype in (
    ("operands", request.dtype),
    ("out_dtype", request.epilogue.out_dtype),
    ("intermediate_dtype", request.epilogue.settled_dtype),
  ):
    if dtype == jnp.float64:
      return Refusal("dtype", f"{name}: float64 is wider than the kernels' float32 accumulator")
  if request.config is not None and request.config.accumulator != "registers":
    return Refusal(
      "option",
      f"config: accumulator={request.config.accumulator!r} is a what-if of the planner; the "
      "kernels accumulate in registers",
    )
  if request.config is not None and request.config.split_k > 1:
    if request.code_dtype is not None:
      return Refusal("option", "config: split_k with fuse=True: a row's scale needs all of K")
    if request.op == "gated_matmul":
      return Refusal("option", "config: split_k with two products: their parts are not stored")
  return None


def _hopper_refusal(
  one: Implementation, request: GemmRequest, problem: MatmulProblem, device: TargetDevice
) -> Refusal | None:
  found = device_refusal(one, device) or _kernel_refusal(request)
  if found is None and request.code_dtype is not None:
    found = Refusal("option", "fuse=True: only the portable kernel quantises on the way")
  overlaps = request.config is not None and request.config.overlap_epilogue
  if found is None and overlaps and not one.interpreted and not compat.CARRIES_ARRAYS:
    found = Refusal("option", "config: overlap_epilogue=True needs jax 0.11 or later")
  if found is None and request.dtype == jnp.float32:
    found = wide_operand_refusal(request.dtype)
  return found or planning.tile_refusal(one, problem, request.config, device)


def _portable_refusal(
  one: Implementation, request: GemmRequest, problem: MatmulProblem, device: TargetDevice
) -> Refusal | None:
  return (
    compiled_refusal(one, device, precision=request.precision)
    or _kernel_refusal(request)
    or planning.tile_refusal(one, problem, request.config, device)
  )


def _xla_refusal(
  one: Implementation, request: GemmRequest, problem: MatmulProblem, device: TargetDevice
) -> Refusal | None:
  del one, problem, device
  if request.batch_invariant:
    return Refusal("option", "batch_invariant=True: XLA's libraries choose the order of a sum by M")
  if request.config is not None:
    return Refusal("option", "config: XLA takes no tile")
  return None


def _run_hopper(
  one: Implementation,
  request: GemmRequest,
  operands: Operands,
  config: MatmulConfig,
  device: TargetDevice,
) -> jax.Array:
  sms = device.num_cores or planning_profile(device)[0].sm_count

  def kernel(operands: Operands, epilogue: Epilogue) -> jax.Array:
    out = hopper.matmul(
      operands,
      transposes=request.transposes,
      config=config,
      epilogue=epilogue,
      num_ctas=_INTERPRETED_CTAS if one.interpreted else sms,
      interpret=compat.gpu_interpret_params() if one.interpreted else None,
    )
    # Mosaic GPU kernels drop the mesh axes that their operands vary over
    return sharding.vary_together(out, operands.a)[0]

  return split_k.run(kernel, operands, epilogue=request.epilogue, config=config)


def _hopper_notes(
  request: GemmRequest, problem: MatmulProblem, config: MatmulConfig
) -> tuple[str, ...]:
  padding = hopper_layout.padding_notes(
    problem,
    config=config,
    out_dtype=split_k.stored_dtype(request.epilogue, config, operands=request.dtype),
    transposes=request.transposes,
  )
  return (*padding, *split_k.notes(problem, config))


def _run_portable(
  one: Implementation,
  request: GemmRequest,
  operands: Operands,
  config: MatmulConfig,
  device: TargetDevice,
) -> jax.Array:
  del device

  def kernel(operands: Operands, epilogue: Epilogue) -> jax.Array:
    return portable.matmul(
      operands,
      transposes=request.transposes,
      config=config,
      epilogue=epilogue,
      precision=request.precision,
      interpret=one.interpreted,
      code_dtype=request.code_dtype,
    )

  return split_k.run(kernel, operands, epilogue=request.epilogue, config=config)


def _portable_notes(
  request: GemmRequest, problem: MatmulProblem, config: MatmulConfig
) -> tuple[str, ...]:
  del request
  return split_k.notes(problem, config)


def _run_xla(
  one: Implementation,
  request: GemmRequest,
  operands: Operands,
  config: MatmulConfig | None,
  device: TargetDevice,
) -> jax.Array:
  del one, config, device
  return xla.matmul(
    operands,
    transposes=request.transposes,
    epilogue=request.epilogue,
    precision=request.precision,
    code_dtype=request.code_dtype,
  )


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
  Implementation(
    name,
    schedule="multistage",
    refusal=_portable_refusal,
    run=_run_portable,
    notes=_portable_notes,
  )
  for name in ("triton", "interpret")
)
_XLA = Implementation("xla", schedule=None, refusal=_xla_refusal, run=_run_xla)


def by_preference(request: GemmRequest) -> tuple[Implementation, ...]:
  """All implementations of matmul, the best first."""
  if request.dtype == jnp.float32:
    # measured on an H200 at 1024 x 4096 x 12288: cuBLAS 1989 us, Triton 2347 us
    return (_MOSAIC_GPU, _XLA, _TRITON, _INTERPRET, _MOSAIC_GPU_INTERPRET)
  return (_MOSAIC_GPU, _TRITON, _XLA, _INTERPRET, _MOSAIC_GPU_INTERPRET)


def choose(request: GemmRequest, problem: MatmulProblem, device: TargetDevice) -> Choice:
  """Which implementation and tile serve a request on a problem.

  Raises:
    hw_profiles.InfeasibleTileError, NotImplementedError: see `dispatch.decide`.
  """
  invariant = dataclasses.replace(
    problem, m=_INVARIANT_ROWS, batch=1, shared_a=False, shared_b=True
  )
  return choice.choose(
    request.op,
    by_preference(request),
    requested=request.implementation,
    config=request.config,
    problem=problem,
    device=device,
    refusal=lambda one: one.refusal(one, request, problem, device),
    notes=lambda one, config: one.notes(request, problem, config),
    plan_as=invariant if request.batch_invariant else None,
    is_empty=problem.is_empty,
  )


def run(request: GemmRequest, operands: Operands) -> jax.Array:
  """Run a request on its operands; [batch, M, N]."""
  device = target_device()
  problem = request.problem(operands)
  chosen = choose(request, problem, device)
  one = chosen.implementation
  if problem.is_empty and one.schedule is not None:
    return _empty(request, operands)
  return one.run(one, request, operands, chosen.config, device)


def _empty(request: GemmRequest, operands: Operands) -> jax.Array:
  """The result where there is nothing to multiply: empty, or the epilogue of zeros."""
  sizes = operands.sizes(request.transposes)
  acc = jnp.zeros((sizes.batch, sizes.m, sizes.n), sum_dtype(operands.bs[0].dtype))
  out = complete(
    request.epilogue,
    (acc,) * len(operands.bs),
    # a sum of nothing is 0 whatever scale its row would have
    tuple(x[:, :, None] for x in operands.per_row),
    tuple(x[:, None, :] for x in operands.per_column),
  )
  return sharding.vary_together(out, operands.a)[0]
