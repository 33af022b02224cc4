"""The public `matmul`."""

from typing import Any

import jax

from hw_profiles import MatmulConfig
from pallas_kernels import arguments, dispatch, sharding
from pallas_kernels.device import target_device
from pallas_kernels.gemm import differentiable
from pallas_kernels.gemm.operands import Operands
from pallas_kernels.gemm.request import describe, make_request
from pallas_kernels.gemm.shapes import as_matrices, explain_request, kernel_shapes


def _explain(a: Any, b: Any, **options: Any) -> dispatch.Explanation:
  """What `matmul(a, b, **options)` would run."""
  a, b = arguments.as_array("a", a), arguments.as_array("b", b)
  options["bias"] = arguments.as_array("bias", options["bias"])
  request = make_request(a, b, **options)
  _, a_shape, b_shape = kernel_shapes(tuple(a.shape), tuple(b.shape))
  bias = options["bias"]
  operands = Operands(
    jax.ShapeDtypeStruct(a_shape, a.dtype),
    (jax.ShapeDtypeStruct(b_shape, b.dtype),),
    (),
    () if bias is None else (jax.ShapeDtypeStruct((1, *bias.shape), bias.dtype),),
  )
  call = describe(a, b, bias, request)
  return explain_request(request, operands, call, target_device(), differentiated=("a", ("b",)))


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
    config: Tile sizes; None: a tuned one, else the planner's choice.
    implementation: None: the best that can run the call, decided when it is
      traced, for the device that JAX would run it on; or a name from
      `pallas_kernels.names.IMPLEMENTATIONS`.

  Returns:
    [..., M, N] in `out_dtype`. With K = 0 the sum is 0; an empty result is empty.

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device (a
      ValueError; names the buffer and the nearest config that fits); not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call;
      names those that can.

  Gradients are reverse-mode, through the same kernels, each product planned for
  its own shape, and can be differentiated again; forward mode is not supported
  (JAX says so).
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
  lead, a3, (b3,) = as_matrices(a, (b,))
  # outside of the custom gradient, so that inside shard_map the gradient of an
  # operand that was the same on all devices is summed over them
  if bias is None:
    a3, b3 = sharding.vary_together(a3, b3)
    bias2 = None
  else:
    a3, b3, bias2 = sharding.vary_together(a3, b3, bias[None, :])
  out = differentiable.matmul(request, a3, b3, bias2)
  return out.reshape(*lead, a.shape[-2], b.shape[-1])
