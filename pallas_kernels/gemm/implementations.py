"""The implementations of matmul: when each can run, with which tile, and how."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from hw_profiles import GpuProfile, MatmulConfig, MatmulProblem
from hw_profiles.matmul.multistage import LANE_COPY_BYTES, lane_copy_bytes
from hw_profiles.matmul.padding import padding_copy_us
from pallas_kernels import choice, compat, dispatch, planning, sharding
from pallas_kernels.choice import Choice
from pallas_kernels.device import TargetDevice, cores_of, planning_profile, target_device
from pallas_kernels.dispatch import Implementation, Refusal
from pallas_kernels.dtypes import accumulator_dtype, sum_dtype
from pallas_kernels.gemm import hopper, hopper_layout, portable, split_k, xla
from pallas_kernels.gemm.epilogue import Epilogue, complete
from pallas_kernels.gemm.operands import Operands
from pallas_kernels.gemm.request import GemmRequest
from pallas_kernels.hopper.refusals import device_refusal, wide_operand_refusal
from pallas_kernels.portable_support import compiled_refusal, e4m3_refusal, offset_refusal

# Rows assumed by `batch_invariant=True`, whatever M is: the config, and with it
# the order of the sum, must not depend on M.
_INVARIANT_ROWS = 1024
# How many times longer the Hopper kernel, with the copies that pad its operands, must be
# predicted to take than Triton's, which reads any pitch, to be left for it: the models were
# checked at odd pitches for one small product (113 x 1023 x 203 on an H200: 7.1 us, of them
# 3.5 the copies, against 3.9), so what is close stays where it was.
_PADDED_FACTOR = 1.25
# Blocks the Mosaic interpreter simulates: enough for a persistent loop to have
# neighbours, few enough to be quick.
_INTERPRETED_CTAS = 2


def _pairs_refusal(request: GemmRequest) -> Refusal | None:
  """Of sums of products, by what has one product an accumulator."""
  if request.pairs == 1:
    return None
  return Refusal("option", "products that are summed: each is a call of its own, then added")


def _kernel_refusal(request: GemmRequest, problem: MatmulProblem) -> Refusal | None:
  """What no kernel of this family does."""
  if not problem.is_empty:
    found = dispatch.count_refusal(k=problem.k) or dispatch.count_refusal(
      batch=problem.batch, m=problem.m, n=problem.n
    )
    if found is not None:
      return found
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
  found = device_refusal(one, device) or _kernel_refusal(request, problem)
  if found is None and request.code_dtype is not None:
    found = Refusal("option", "fuse=True: only the portable kernel quantises on the way")
  overlaps = request.config is not None and request.config.overlap_epilogue
  if found is None and overlaps and not one.interpreted and not compat.CARRIES_ARRAYS:
    found = Refusal("option", "config: overlap_epilogue=True needs jax 0.11 or later")
  if found is None and request.dtype == jnp.float32:
    found = wide_operand_refusal(request.dtype)
  return found or planning.tile_refusal(one, problem, request.config, device)


def _offset_refusal(
  one: Implementation, request: GemmRequest, problem: MatmulProblem
) -> Refusal | None:
  """Of codes that are more than the portable kernel's offsets reach."""
  a = problem.m * problem.k * (1 if problem.shared_a else problem.batch)
  b = problem.k * problem.n * (1 if problem.shared_b else problem.batch)
  narrow_a = request.dtype.itemsize == 1
  return (offset_refusal(one, "a_q", a) if narrow_a else None) or (
    offset_refusal(one, "b_q", b) if narrow_a or request.code_dtype is not None else None
  )


def _portable_refusal(
  one: Implementation, request: GemmRequest, problem: MatmulProblem, device: TargetDevice
) -> Refusal | None:
  return (
    compiled_refusal(one, device, precision=request.precision)
    or _pairs_refusal(request)
    or _kernel_refusal(request, problem)
    or e4m3_refusal(one, device, (request.dtype, request.code_dtype or request.dtype))
    or _offset_refusal(one, request, problem)
    or planning.tile_refusal(one, problem, request.config, device)
  )


def _xla_refusal(
  one: Implementation, request: GemmRequest, problem: MatmulProblem, device: TargetDevice
) -> Refusal | None:
  del one, problem, device
  if (found := _pairs_refusal(request)) is not None:
    return found
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
  sms = cores_of(device)

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
  padding = tuple(copy.note for copy in _padding_copies(request, problem, config))
  return (*padding, *split_k.notes(problem, config))


def _padding_copies(
  request: GemmRequest, problem: MatmulProblem, config: MatmulConfig
) -> tuple[hopper_layout.PaddingCopy, ...]:
  copies = hopper_layout.padding_copies(
    dataclasses.replace(problem, k=problem.k // request.pairs),
    config=config,
    out_dtype=split_k.stored_dtype(request.epilogue, config, operands=request.dtype),
    transposes=request.transposes,
  )
  if request.pairs == 1:
    return copies
  # every pair has operands, all of them one result
  return tuple(
    dataclasses.replace(x, count=x.count * request.pairs) if x.name != "the result" else x
    for x in copies
  )


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


@dataclasses.dataclass(frozen=True)
class _Padded:
  """What the Hopper kernel's rules for pitches cost a product, as predicted.

  Attributes:
    names: The arrays copied by way of padded ones.
    copies_us: The copies.
    kernel_us: The kernel.
  """

  names: str
  copies_us: float
  kernel_us: float

  def refusal(self, instead: str) -> Refusal:
    """That something else is quicker, as a clause says."""
    return Refusal(
      "option",
      f"{self.names} would be copied by way of padded arrays, predicted {self.copies_us:.1f} us"
      f" beside the kernel's {self.kernel_us:.1f}; {instead}",
    )


def _padded(
  request: GemmRequest, problem: MatmulProblem, device: TargetDevice, profile: GpuProfile
) -> _Padded | None:
  """What padding costs the Hopper kernel; None: nothing, or nobody knows."""
  config, plan = planning.resolve(_MOSAIC_GPU, problem, None, device)
  copies = _padding_copies(request, problem, config)
  # a second kernel that adds parts up, or finishes them, reads what is padded as it is
  copies = tuple(x for x in copies if x.name != "the result" or config.split_k == 1)
  if not copies or plan is None or plan.predicted_us is None:
    return None
  copied_us = sum(
    padding_copy_us(
      copy.count * math.prod(copy.shape),
      copy.count * math.prod(copy.padded),
      copy.itemsize,
      profile,
    )
    for copy in copies
  )
  return _Padded(
    ", ".join(copy.name for copy in copies),
    copied_us,
    plan.predicted_us,
  )


def _padded_refusal(
  request: GemmRequest, problem: MatmulProblem, device: TargetDevice
) -> Refusal | None:
  """Why the Hopper kernel, for which it would be padded, is not the one for a product.

  TMA copies rows that are multiples of 16 bytes apart. Other arrays are copied
  first, each by a launch of its own. Of a plain product of narrow pitch the copies
  are most of the time where it is small, and it goes to Triton; of a large one they
  cost less than Triton's loads of less than 16 bytes.

  Asked where nobody chose an implementation or a tile. The rows of a batch-invariant
  product must not choose its implementation, and they would.
  """
  profile, own = planning_profile(device)
  if (
    request.implementation is not None
    or request.config is not None
    or request.batch_invariant
    or request.op != "matmul"
    # gradients, none of which was measured
    or request.transposes.any
    or request.pairs > 1
    or request.dtype.itemsize != 2
    or problem.is_empty
    or not own
    or not isinstance(profile, GpuProfile)
    or _MOSAIC_GPU.refusal(_MOSAIC_GPU, request, problem, device)
  ):
    return None
  narrow = min(lane_copy_bytes(problem)) < LANE_COPY_BYTES
  if not narrow or _TRITON.refusal(_TRITON, request, problem, device):
    return None
  padded = _padded(request, problem, device, profile)
  _, portable_plan = planning.resolve(_TRITON, problem, None, device)
  if padded is None or portable_plan is None or portable_plan.predicted_us is None:
    return None
  portable_us = portable_plan.predicted_us
  if padded.kernel_us + padded.copies_us < _PADDED_FACTOR * portable_us:
    return None
  return padded.refusal(f"triton, which needs no copies, {portable_us:.1f} us")


def choose(request: GemmRequest, problem: MatmulProblem, device: TargetDevice) -> Choice:
  """Which implementation and tile serve a request on a problem.

  Raises:
    hw_profiles.InfeasibleTileError, NotImplementedError: see `dispatch.decide`.
  """
  padded = _padded_refusal(request, problem, device)
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
    refusal=lambda one: (
      (padded if one is _MOSAIC_GPU else None) or one.refusal(one, request, problem, device)
    ),
    notes=lambda one, config: one.notes(request, problem, config),
    plan_as=invariant if request.batch_invariant else None,
    is_empty=problem.is_empty,
  )


def _sums_pairs(request: GemmRequest, problem: MatmulProblem, device: TargetDevice) -> bool:
  """Whether the kernel that a request gets adds the products of its pairs up by itself."""
  wanted = request.implementation or _MOSAIC_GPU.name
  return any(
    one.name == wanted and not one.refusal(one, request, problem, device)
    for one in (_MOSAIC_GPU, _MOSAIC_GPU_INTERPRET)
  )


def _of_one_pair(request: GemmRequest) -> GemmRequest:
  """A request for the product of each pair, kept as wide as it is summed."""
  return dataclasses.replace(request.plain(accumulator_dtype(request.dtype)), pairs=1)


def choose_summed(request: GemmRequest, operands: Operands, device: TargetDevice) -> Choice:
  """`choose` of a product, or of a sum of products as `run` takes it: else of each of them.

  Raises:
    hw_profiles.InfeasibleTileError, NotImplementedError: see `dispatch.decide`.
  """
  problem = request.problem(operands)
  if request.pairs > 1 and not _sums_pairs(request, problem, device):
    alone = _of_one_pair(request)
    return choose(alone, alone.problem(operands.apart[0]), device)
  return choose(request, problem, device)


def _run_apart(request: GemmRequest, operands: Operands) -> jax.Array:
  """The products of pairs, each by what serves it, and their sum in float32 or wider."""
  alone = _of_one_pair(request)
  total = functools.reduce(jnp.add, (run(alone, pair) for pair in operands.apart))
  return complete(request.epilogue, (total,), (), ())


def run(request: GemmRequest, operands: Operands) -> jax.Array:
  """Run a request on its operands; [batch, M, N].

  A sum of products that no kernel adds up is one run for each of them.
  """
  device = target_device()
  problem = request.problem(operands)
  if request.pairs > 1 and not _sums_pairs(request, problem, device):
    return _run_apart(request, operands)
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
