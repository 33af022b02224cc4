"""The public `matmul`."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import MatmulConfig
from pallas_kernels import arguments, dispatch, sharding
from pallas_kernels.device import target_device
from pallas_kernels.gemm import differentiable, implementations
from pallas_kernels.gemm.request import describe, make_request


def _explain(a: Any, b: Any, **options: Any) -> dispatch.Explanation:
  """What `matmul(a, b, **options)` would run."""
  a, b = arguments.as_array("a", a), arguments.as_array("b", b)
  options["bias"] = arguments.as_array("bias", options["bias"])
  request = make_request(a, b, **options)
  device = target_device()
  _, a_shape, b_shape = _kernel_shapes(tuple(a.shape), tuple(b.shape))
  bias = options["bias"]
  problem = request.problem(a_shape, b_shape, None if bias is None else (1, *bias.shape))
  choice = implementations.choose(request, problem, device)
  notes = choice.notes
  if problem.is_empty:
    notes += ("nothing to multiply: the result is empty, or the epilogue of zeros",)
  return dispatch.Explanation(
    op="matmul",
    call=describe(a, b, bias, request),
    device=device.kind,
    implementation=choice.implementation.name,
    config=choice.config,
    plan=choice.plan,
    refused=choice.refused,
    notes=notes,
  )


@dispatch.explained_by(_explain)
def matmul(
  a: jax.Array,
  b: jax.Array,
  *,
  bias: jax.Array | None = None,
  activation: str | None = None,
  intermediate_dtype: Any = None,
  out_dtype: Any = None,
  precision: Any = None,
  batch_invariant: bool = False,
  config: MatmulConfig | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """C = round_out(act(round_mid(A·B + bias))).

  A·B + bias is accumulated in float32 (float64 for float64 operands) over the
  whole of K before anything else happens to it. With an activation the sum is
  rounded to `intermediate_dtype` first: the default, the output dtype, is what
  an unfused program does between its two operations, so that fused and unfused
  agree; float32 keeps the sum unrounded. The result is rounded to `out_dtype`
  once.

  Args:
    a: [..., M, K] in bfloat16, float16, float32 or float64; any size, 0 too.
    b: [K, N], or [..., K, N] with leading dimensions that broadcast against
      a's; the dtype of a.
    bias: [N], any of these dtypes, added to every row; or None.
    activation: None or "silu".
    intermediate_dtype: Where the sum is rounded before the activation; None:
      `out_dtype`. Without an activation it changes nothing.
    out_dtype: Dtype of C; None: the dtype of a.
    precision: For float32 operands, a `jax.lax.PrecisionLike`; None computes to
      float32 accuracy, never TF32.
    batch_invariant: Give each row the same bits whatever M is and wherever in
      A the row stands (for one device, JAX version, K and N).
    config: Tile sizes; None: the planner's choice.
    implementation: None: the best that can run the call, decided when it is
      traced, for the device that JAX would run it on; or a name from
      `pallas_kernels.names.IMPLEMENTATIONS`.

  Returns:
    [..., M, N] in `out_dtype`. With K = 0 the sum is 0; an empty result is empty.

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device (a
      ValueError; names the buffer and the nearest config that fits).
    NotImplementedError: the implementation asked for cannot run this call;
      names those that can.

  Gradients are reverse-mode, through the same kernels, and can be
  differentiated again; forward mode is not supported (JAX says so).
  """
  for name, array in (("a", a), ("b", b), ("bias", bias)):
    arguments.require_values(name, array)
  a, b, bias = (arguments.as_array(name, x) for name, x in (("a", a), ("b", b), ("bias", bias)))
  request = make_request(
    a,
    b,
    bias=bias,
    activation=activation,
    intermediate_dtype=intermediate_dtype,
    out_dtype=out_dtype,
    precision=precision,
    batch_invariant=batch_invariant,
    config=config,
    implementation=implementation,
  )
  lead, a_shape, b_shape = _kernel_shapes(a.shape, b.shape)
  a3 = jnp.broadcast_to(a, (*_lead_for(a_shape, a, lead), *a.shape[-2:])).reshape(a_shape)
  b3 = jnp.broadcast_to(b, (*_lead_for(b_shape, b, lead), *b.shape[-2:])).reshape(b_shape)
  # outside of the custom gradient, so that inside shard_map the gradient of an
  # operand that was the same on all devices is summed over them
  if bias is None:
    a3, b3 = sharding.vary_together(a3, b3)
    bias2 = None
  else:
    a3, b3, bias2 = sharding.vary_together(a3, b3, bias[None, :])
  out = differentiable.matmul(request, a3, b3, bias2)
  return out.reshape(*lead, a.shape[-2], b.shape[-1])


def _kernel_shapes(
  a_shape: tuple[int, ...], b_shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, int, int], tuple[int, int, int]]:
  """Result's leading dimensions, and the 3-d shapes the kernels take.

  With one B, the leading dimensions of A are only more rows.
  """
  lead = jnp.broadcast_shapes(a_shape[:-2], b_shape[:-2])
  m, k = a_shape[-2:]
  n = b_shape[-1]
  if math.prod(b_shape[:-2]) == 1:
    return lead, (1, math.prod(lead) * m, k), (1, k, n)
  batch = math.prod(lead)
  a_batch = 1 if math.prod(a_shape[:-2]) == 1 else batch
  return lead, (a_batch, m, k), (batch, k, n)


def _lead_for(
  kernel_shape: tuple[int, int, int], array: jax.Array, lead: tuple[int, ...]
) -> tuple[int, ...]:
  """Leading dimensions to broadcast an operand to before it is reshaped."""
  elements = math.prod(array.shape[-2:])
  if math.prod(kernel_shape) == elements:
    return array.shape[:-2]
  return lead
