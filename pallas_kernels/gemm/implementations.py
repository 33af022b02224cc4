"""The implementations of matmul: when each can run, with which config, and how."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

import hw_profiles
from hw_profiles import MatmulConfig, MatmulProblem, TilePlan
from hw_profiles.planner.plan import Schedule
from pallas_kernels import compat, dispatch
from pallas_kernels.gemm import hopper, portable, xla
from pallas_kernels.gemm.request import MatmulRequest

# Planning for a device whose profile is unknown, or for an interpreter, which
# has none, takes the tile that this one would.
_DEFAULT_PROFILE = "h100_sxm"
# Rows assumed by `batch_invariant=True`, whatever M is: the config, and with it
# the order of the sum, must not depend on M.
_INVARIANT_ROWS = 1024
# Blocks the Mosaic interpreter simulates: enough for a persistent loop to have
# neighbours, few enough to be quick.
_INTERPRETED_CTAS = 2

_SCHEDULES: Mapping[str, Schedule] = {
  "mosaic_gpu": "warp_specialized",
  "mosaic_gpu_interpret": "warp_specialized",
  "triton": "multistage",
  "interpret": "multistage",
}


@dataclasses.dataclass(frozen=True)
class Choice:
  """An implementation and, where it has one, its config and plan."""

  implementation: str
  config: MatmulConfig | None
  plan: TilePlan | None
  refused: Any


def _profile(device: compat.TargetDevice) -> hw_profiles.GpuProfile:
  known = hw_profiles.profile_for_device_kind(device.kind)
  if known is not None:
    return known
  profile = hw_profiles.get_profile(_DEFAULT_PROFILE)
  assert isinstance(profile, hw_profiles.GpuProfile)
  return profile


def _is_hopper(device: compat.TargetDevice) -> bool:
  if device.compute_capability is not None:
    return device.compute_capability == (9, 0)
  known = hw_profiles.profile_for_device_kind(device.kind)
  return known is not None and known.has_wgmma


def _plan(
  problem: MatmulProblem, config: MatmulConfig, implementation: str, profile: Any
) -> TilePlan:
  return hw_profiles.plan(problem, config, profile, schedule=_SCHEDULES[implementation])


@functools.lru_cache(maxsize=4096)
def _planned(problem: MatmulProblem, implementation: str, profile_name: str) -> TilePlan | None:
  """The planner's best tile for this kernel on this device; None: nothing fits."""
  profile = hw_profiles.get_profile(profile_name)
  schedule = _SCHEDULES[implementation]
  best = hw_profiles.rank(problem, profile, top=1, schedule=schedule)
  return best[0] if best and best[0].fits else None


def _invariant(problem: MatmulProblem) -> MatmulProblem:
  return dataclasses.replace(problem, m=_INVARIANT_ROWS, batch=1, shared_b=True)


def resolve_config(
  request: MatmulRequest,
  problem: MatmulProblem,
  implementation: str,
  device: compat.TargetDevice,
) -> TilePlan:
  """The config that `implementation` would use, as a plan that fits.

  Raises:
    hw_profiles.InfeasibleTileError: the user's config does not fit, or no
      config does.
  """
  profile = _profile(device)
  if request.config is not None:
    plan = _plan(problem, request.config, implementation, profile)
    if implementation != "interpret":
      plan.check()
    return plan
  wanted = _invariant(problem) if request.batch_invariant else problem
  best = _planned(wanted, implementation, profile.name)
  if best is None:
    raise hw_profiles.InfeasibleTileError(
      f"no {implementation} tile fits {problem} on {profile.name}"
    )
  if wanted is problem:
    return best
  return _plan(problem, best.config, implementation, profile)


def _common_kernel_refusal(request: MatmulRequest) -> str | None:
  for name, dtype in (
    ("operands", request.dtype),
    ("out_dtype", request.epilogue.out_dtype),
    ("intermediate_dtype", request.epilogue.intermediate_dtype),
  ):
    if dtype == jnp.float64:
      return f"{name}: float64 is not a dtype of the kernels, whose accumulator is float32"
  return None


def _hopper_refusal(
  request: MatmulRequest, problem: MatmulProblem, device: compat.TargetDevice
) -> str | None:
  reason = _common_kernel_refusal(request)
  if reason is None and request.dtype == jnp.float32:
    reason = "float32 operands: wgmma would round them to TF32 (10 significand bits)"
  if reason is None and request.config is not None:
    plan = _plan(problem, request.config, "mosaic_gpu", _profile(device))
    reason = None if plan.fits else f"config: {plan.reason}"
  return reason


def _mosaic_gpu_refusal(
  request: MatmulRequest, problem: MatmulProblem, device: compat.TargetDevice
) -> str | None:
  reason = dispatch.needs_gpu(device)
  if reason is None and not _is_hopper(device):
    reason = f"needs Hopper (compute capability 9.0), and this is {device.kind!r}"
  return reason or _hopper_refusal(request, problem, device)


def _triton_refusal(
  request: MatmulRequest, problem: MatmulProblem, device: compat.TargetDevice
) -> str | None:
  reason = dispatch.needs_gpu(device) or _common_kernel_refusal(request)
  if (
    reason is None and device.compute_capability is not None and device.compute_capability < (8, 0)
  ):
    reason = f"Triton's lowering needs compute capability 8.0, and this is {device.kind!r}"
  if reason is None and request.config is not None:
    plan = _plan(problem, request.config, "triton", _profile(device))
    reason = None if plan.fits else f"config: {plan.reason}"
  return reason


def _xla_refusal(request: MatmulRequest) -> str | None:
  if request.batch_invariant:
    return "batch_invariant=True: cuBLAS and Eigen choose the order of the sum by M"
  if request.config is not None:
    return "config: XLA takes no tile"
  return None


def choose(
  request: MatmulRequest,
  a_shape: tuple[int, ...],
  b_shape: tuple[int, ...],
  *,
  bias: bool,
  device: compat.TargetDevice | None = None,
) -> Choice:
  """Which implementation and config serve a request on operands of these 3-d shapes.

  Raises:
    ValueError, NotImplementedError: see `dispatch.decide`.
    hw_profiles.InfeasibleTileError: the config does not fit.
  """
  device = compat.target_device() if device is None else device
  problem = request.problem(a_shape, b_shape, bias=bias)
  if request.implementation in ("mosaic_gpu", "mosaic_gpu_interpret", "triton") and (
    request.config is not None
  ):
    # the user named the kernel and the tile: a tile that does not fit is the
    # planner's own error, not a missing feature
    _plan(problem, request.config, request.implementation, _profile(device)).check()
  candidates = [
    dispatch.Candidate("mosaic_gpu", lambda: _mosaic_gpu_refusal(request, problem, device)),
    dispatch.Candidate("triton", lambda: _triton_refusal(request, problem, device)),
    dispatch.Candidate("xla", lambda: _xla_refusal(request)),
    dispatch.Candidate("interpret", lambda: _common_kernel_refusal(request)),
    dispatch.Candidate("mosaic_gpu_interpret", lambda: _hopper_refusal(request, problem, device)),
  ]
  if request.dtype == jnp.float32:
    # measured on an H200 at 1024 x 4096 x 12288: cuBLAS 1989 us, Triton 2347 us
    candidates.insert(0, candidates.pop(2))
  decision = dispatch.decide("matmul", candidates, request.implementation)
  plan = None
  if decision.implementation != "xla":
    plan = resolve_config(request, problem, decision.implementation, device)
  return Choice(
    implementation=decision.implementation,
    config=None if plan is None else plan.config,
    plan=plan,
    refused=decision.refused,
  )


def run(request: MatmulRequest, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
  """Run a request on a [batch or 1, M, K], b [batch or 1, K, N], bias [batch or 1, N]."""
  device = compat.target_device()
  choice = choose(request, a.shape, b.shape, bias=bias is not None, device=device)
  if choice.implementation == "xla":
    return xla.matmul(a, b, bias, epilogue=request.epilogue, precision=request.precision)
  assert choice.config is not None
  if choice.implementation in ("triton", "interpret"):
    return portable.matmul(
      a,
      b,
      bias,
      config=choice.config,
      epilogue=request.epilogue,
      precision=request.precision,
      interpret=choice.implementation == "interpret",
    )
  interpreted = choice.implementation == "mosaic_gpu_interpret"
  out = hopper.matmul(
    a,
    b,
    bias,
    config=choice.config,
    epilogue=request.epilogue,
    num_ctas=_INTERPRETED_CTAS if interpreted else device.num_cores or _profile(device).sm_count,
    interpret=compat.gpu_interpret_params() if interpreted else None,
  )
  # Mosaic GPU kernels drop the mesh axes that their operands vary over
  return compat.vary_together(out, a)[0]
