"""The public `gated_matmul`, its explanation and its gradient."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import MatmulConfig
from pallas_kernels import activations, arguments, dispatch, sharding
from pallas_kernels.device import target_device
from pallas_kernels.dtypes import accumulator_dtype, round_once
from pallas_kernels.gemm import differentiable
from pallas_kernels.gemm.epilogue import GatedEpilogue
from pallas_kernels.gemm.operands import Operands
from pallas_kernels.gemm.request import GemmRequest, check_matrices, check_options
from pallas_kernels.gemm.shapes import as_matrices, explain_request, kernel_shapes


def _request(
  x: Any,
  w_gate: Any,
  w_up: Any,
  *,
  activation: str,
  intermediate_dtype: Any,
  out_dtype: Any,
  precision: Any,
  batch_invariant: bool,
  config: MatmulConfig | None,
  implementation: str | None,
) -> GemmRequest:
  """Check the arguments of `gated_matmul`; raises ValueError."""
  check_matrices(("x", x), ("w_gate", w_gate))
  check_matrices(("x", x), ("w_up", w_up))
  if tuple(w_up.shape) != tuple(w_gate.shape):
    raise ValueError(
      f"w_gate has shape {tuple(w_gate.shape)} and w_up {tuple(w_up.shape)}: expected one shape"
    )
  arguments.check_choice("activation", activation, activations.ACTIVATIONS, none_too=False)
  check_options(config, batch_invariant=batch_invariant, implementation=implementation)
  dtype = jnp.dtype(x.dtype)
  out = dtype if out_dtype is None else arguments.float_dtype("out_dtype", out_dtype)
  mid = out
  if intermediate_dtype is not None:
    mid = arguments.float_dtype("intermediate_dtype", intermediate_dtype)
  return GemmRequest(
    op="gated_matmul",
    dtype=dtype,
    epilogue=GatedEpilogue(activation=activation, intermediate_dtype=mid, out_dtype=out),
    precision=arguments.precision(precision, dtype),
    batch_invariant=batch_invariant,
    config=config,
    implementation=implementation,
  )


def _explain(x: Any, w_gate: Any, w_up: Any, **options: Any) -> dispatch.Explanation:
  """What `gated_matmul(x, w_gate, w_up, **options)` would run."""
  x, w_gate, w_up = (
    arguments.as_array(name, value)
    for name, value in (("x", x), ("w_gate", w_gate), ("w_up", w_up))
  )
  request = _request(x, w_gate, w_up, **options)
  _, x_shape, w_shape = kernel_shapes(tuple(x.shape), tuple(w_gate.shape))
  weight = jax.ShapeDtypeStruct(w_shape, w_gate.dtype)
  operands = Operands(jax.ShapeDtypeStruct(x_shape, x.dtype), (weight, weight))
  call = ", ".join(
    (
      *map(arguments.describe_array, (x, w_gate, w_up)),
      f"activation={options['activation']!r}, out={request.epilogue.out_dtype.name}",
    )
  )
  names = "x", ("w_gate", "w_up")
  return explain_request(request, operands, call, target_device(), differentiated=names)


@dispatch.explained_by(_explain)
def gated_matmul(
  x: jax.Array,
  w_gate: jax.Array,
  w_up: jax.Array,
  *,
  activation: str = "silu",
  intermediate_dtype: Any = None,
  out_dtype: Any = None,
  precision: Any = None,
  batch_invariant: bool = False,
  config: MatmulConfig | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """out = round_out(act(round_mid(X·W_gate)) · round_mid(X·W_up)).

  The first half of a gated feed-forward layer. Both products accumulate in
  float32 over the whole of K in one walk: a tile of X is read once for both.
  round_mid is where the unfused program stores its products, so that fused and
  unfused agree; `intermediate_dtype=jnp.float32` keeps the sums unrounded.
  Activation and product are float32, the result is rounded once.

  Args:
    x: [..., M, K] in bfloat16, float16, float32 or float64; any size, 0 too.
    w_gate: [K, N], or [..., K, N] with leading dimensions that broadcast
      against x's; the dtype of x.
    w_up: The same shape and dtype.
    activation: "silu", applied to the product with `w_gate`.
    intermediate_dtype: Where both sums are rounded; None: `out_dtype`.
    out_dtype: Dtype of the result; None: the dtype of x.
    precision: For float32 operands, a `jax.lax.PrecisionLike`; None computes to
      float32 accuracy, never TF32.
    batch_invariant: Give each row the same bits whatever M is and wherever in
      x the row stands (for one device, JAX version, K and N).
    config: Tile sizes, `block_n` of them columns of the result; None: a tuned
      one, else the planner's choice.
    implementation: As for `matmul`.

  Returns:
    [..., M, N] in `out_dtype`. With K = 0 zeros; an empty result is empty.

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device; not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call.

  Gradients are reverse-mode, through the same kernels, each product planned for
  its own shape; forward mode is not supported (JAX says so).
  """
  named = (("x", x), ("w_gate", w_gate), ("w_up", w_up))
  for name, array in named:
    arguments.require_values(name, array)
  x, w_gate, w_up = (arguments.as_array(name, array) for name, array in named)
  request = _request(
    x,
    w_gate,
    w_up,
    activation=activation,
    intermediate_dtype=intermediate_dtype,
    out_dtype=out_dtype,
    precision=precision,
    batch_invariant=batch_invariant,
    config=config,
    implementation=implementation,
  )
  lead, x3, (gate3, up3) = as_matrices(x, (w_gate, w_up))
  x3, gate3, up3 = sharding.vary_together(x3, gate3, up3)
  out = _gated(request, x3, gate3, up3)
  return out.reshape(*lead, x.shape[-2], w_gate.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gated(request: GemmRequest, x: jax.Array, w_gate: jax.Array, w_up: jax.Array) -> jax.Array:
  """`gated_matmul` on [batch or 1, M, K], [batch or 1, K, N] twice."""
  return differentiable.run_batched(request, Operands(x, (w_gate, w_up)))


def _forward(
  request: GemmRequest, x: jax.Array, w_gate: jax.Array, w_up: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
  """The result, and the two products as the unfused program stores them.

  The gradient needs both. Storing them and finishing from what was stored
  costs the elementwise pass; computing them again would cost two products.
  """
  epilogue = request.epilogue
  plain = request.plain(epilogue.settled_dtype)
  gate = differentiable.matmul(plain, x, w_gate, None)
  up = differentiable.matmul(plain, x, w_up, None)
  return epilogue.finish(gate, up), (x, w_gate, w_up, gate, up)


def _backward(
  request: GemmRequest, residuals: tuple[jax.Array, ...], d_out: jax.Array
) -> tuple[jax.Array, ...]:
  """Gradients of out = act(g)·u, g = X·W_gate, u = X·W_up.

      dg = d_out ⊙ u ⊙ act'(g);  du = d_out ⊙ act(g)
      dX = dg·W_gateᵀ + du·W_upᵀ;  dW_gate = Xᵀ·dg;  dW_up = Xᵀ·du

  Roundings count as the identity; dg and du are rounded to the operands' dtype,
  as the unfused program rounds them. dX is one float32 sum over both products,
  rounded once: two results in float32 and their addition moved 64 MiB more at
  1024 x 4096 x 12288, some 20 of 873 us on an H200.
  """
  x, w_gate, w_up, gate, up = residuals
  gate, up = differentiable.as_stored((gate, up))
  wide = accumulator_dtype(x.dtype)
  g, u, d = gate.astype(wide), up.astype(wide), d_out.astype(wide)
  name = request.epilogue.activation
  assert name is not None
  # both from one exponential and one quotient: instructions, of which a pass over 5 arrays has
  # few to spare (see `activations`), would be half as many again with one for each
  activated, slope = activations.with_derivative(name, g)
  d_gate = round_once(d * u * slope, x.dtype)
  d_up = round_once(d * activated, x.dtype)
  return (
    differentiable.d_left(request, (d_gate, d_up), x, (w_gate, w_up)),
    differentiable.d_right(request, d_gate, x, w_gate),
    differentiable.d_right(request, d_up, x, w_up),
  )


_gated.defvjp(_forward, _backward)
