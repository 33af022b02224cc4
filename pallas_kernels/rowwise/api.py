"""The public swiglu, quantisation and transpose; `rms_norm` is in `norm`."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hw_profiles import RowConfig
from pallas_kernels import arguments, choice, dispatch, sharding
from pallas_kernels.device import target_device
from pallas_kernels.rowwise import differentiable, implementations
from pallas_kernels.rowwise.request import (
  RowRequest,
  check_config,
  check_number,
  check_operands,
  check_static,
  code_dtype,
)
from pallas_kernels.rowwise.sizes import Sizes
from pallas_kernels.rowwise.specs import RowCodes, Swiglu, SwigluCodes
from pallas_kernels.rowwise.transposing import Transpose


class QuantizedRows(NamedTuple):
  """Rows of 8-bit codes: x ≈ codes·scale.

  Attributes:
    codes: float8_e4m3fn or int8, of the shape of x.
    scale: float32 [..., 1]; or as it was given.
  """

  codes: jax.Array
  scale: jax.Array


def matrix(x: jax.Array) -> jax.Array:
  """[..., columns] as [1, rows, columns]."""
  return x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])


def row_sizes(x: Any) -> Sizes:
  """The sizes of `matrix(x)`."""
  return Sizes(1, math.prod(x.shape[:-1]), x.shape[-1])


def explanation(
  request: RowRequest, call: str, sizes: Sizes, *, gradient: RowRequest | None = None
) -> dispatch.Explanation:
  """What a checked call would run; and `gradient`, which has kernels of its own."""
  device = target_device()
  chosen = implementations.choose(request, sizes, device)
  notes: tuple[str, ...] = ()
  if sizes.elements == 0:
    notes = ("there are no elements: no kernel runs",)
  elif gradient is not None:
    notes = (choice.gradient_note(lambda: implementations.choose(gradient, sizes, device)),)
  return chosen.explanation(request.op, call, device, *notes)


def make(
  op: str, spec: Any, dtype: jnp.dtype, config: RowConfig | None, implementation: str | None
) -> RowRequest:
  """A request, its last two options checked."""
  check_config(config)
  arguments.check_implementation(implementation)
  return RowRequest(op, spec, dtype, config, implementation)


# --- swiglu


def _swiglu_request(
  gate: Any,
  up: Any,
  *,
  intermediate_dtype: Any,
  out_dtype: Any,
  config: RowConfig | None,
  implementation: str | None,
) -> RowRequest:
  dtype = check_operands(("gate", "up"), (gate, up))
  out = dtype if out_dtype is None else arguments.float_dtype("out_dtype", out_dtype)
  between = (
    out
    if intermediate_dtype is None
    else arguments.float_dtype("intermediate_dtype", intermediate_dtype)
  )
  return make("swiglu", Swiglu(between, out), dtype, config, implementation)


def _explain_swiglu(gate: Any, up: Any, **options: Any) -> dispatch.Explanation:
  """What `swiglu(gate, up, **options)` would run."""
  gate, up = arguments.as_array("gate", gate), arguments.as_array("up", up)
  request = _swiglu_request(gate, up, **options)
  call = f"{arguments.describe_array(gate)} x2, out={request.spec.out_dtype.name}"
  return explanation(request, call, row_sizes(gate))


@dispatch.explained_by(_explain_swiglu)
def swiglu(
  gate: jax.Array,
  up: jax.Array,
  *,
  intermediate_dtype: Any = None,
  out_dtype: Any = None,
  config: RowConfig | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """round_out(round_mid(silu(gate))·up), silu(x) = x / (1 + exp(-x)).

  Computed in float32 (float64 for float64 operands) in one pass. round_mid is
  the rounding that a program of two elementwise kernels does between them: the
  default rounds silu(gate) to the output dtype, so that fused and unfused
  agree; float32 keeps it unrounded. silu(-inf) = 0, NaN stays NaN.

  Args:
    gate: [..., columns] in bfloat16, float16, float32 or float64; any size.
    up: Of the shape and dtype of `gate`.
    intermediate_dtype: dtype of round_mid; None: `out_dtype`.
    out_dtype: Dtype of the result; None: that of `gate`.
    config: The block; None: a tuned one, else the planner's choice. The kernel
      reads the operands as one sequence, `block_rows`·`block_cols` elements a
      program.
    implementation: None: the best that can run the call; or a name from
      `pallas_kernels.names.IMPLEMENTATIONS`.

  Returns:
    The shape of `gate` in `out_dtype`.

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device; not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call.

  Gradients are reverse-mode, of first order; both come from one pass over gate,
  up and the result's gradient. Roundings count as the identity.

  Source: Shazeer, "GLU Variants Improve Transformer" (arXiv:2002.05202), with
  the beta of Swish at 1.
  """
  for name, array in (("gate", gate), ("up", up)):
    arguments.require_values(name, array)
  gate, up = arguments.as_array("gate", gate), arguments.as_array("up", up)
  request = _swiglu_request(
    gate,
    up,
    intermediate_dtype=intermediate_dtype,
    out_dtype=out_dtype,
    config=config,
    implementation=implementation,
  )
  # outside of the custom gradient, so that inside shard_map the gradient of an
  # operand that was the same on all devices is summed over them
  matrices = sharding.vary_together(matrix(gate), matrix(up))
  return differentiable.swiglu(request, *matrices).reshape(gate.shape)


# --- quantisation


def _swiglu_quantize_request(
  gate: Any,
  up: Any,
  *,
  scale: Any,
  dtype: Any,
  config: RowConfig | None,
  implementation: str | None,
) -> RowRequest:
  operand = check_operands(("gate", "up"), (gate, up))
  codes = code_dtype("dtype", dtype)
  if scale is not None:
    _check_scale(scale, gate)
  spec = RowCodes(codes, swiglu=True) if scale is None else SwigluCodes(codes)
  return make("swiglu_quantize", spec, operand, config, implementation)


def _check_scale(scale: Any, x: Any) -> None:
  """Raises ValueError unless it is a number above 0, or has one number for each row."""
  if not hasattr(scale, "shape"):
    if check_number("scale", scale) <= 0:
      raise ValueError(f"scale={scale!r}: expected a number above 0")
    return
  arguments.check_float("scale", scale)
  check_static("scale", scale)
  rows = (*x.shape[:-1], 1)
  try:
    fits = not scale.shape or jnp.broadcast_shapes(scale.shape, rows) == rows
  except ValueError:
    fits = False
  if not fits:
    raise ValueError(
      f"scale has shape {tuple(scale.shape)}: expected () or one that broadcasts to {rows}, a "
      "number for each row"
    )


def _explain_swiglu_quantize(gate: Any, up: Any, **options: Any) -> dispatch.Explanation:
  """What `swiglu_quantize(gate, up, **options)` would run."""
  gate, up = arguments.as_array("gate", gate), arguments.as_array("up", up)
  request = _swiglu_quantize_request(gate, up, **options)
  scaled = "a scale for each row" if options["scale"] is None else "scale given"
  call = f"{arguments.describe_array(gate)} x2, {scaled}, out={request.spec.code_dtype.name}"
  return explanation(request, call, row_sizes(gate))


@dispatch.explained_by(_explain_swiglu_quantize)
def swiglu_quantize(
  gate: jax.Array,
  up: jax.Array,
  *,
  scale: Any = None,
  dtype: Any = jnp.float8_e4m3fn,
  config: RowConfig | None = None,
  implementation: str | None = None,
) -> QuantizedRows:
  """Codes and scale of z = silu(gate)·up, in one pass over gate and up.

      code = saturate(round(z / scale)),    scale = max |z| of the row / largest code

  z is float32 and rounded to nothing narrower but its code; see `quantize_rows`
  for the codec.

  Args:
    gate: [..., columns] in bfloat16, float16, float32 or float64; any size.
    up: Of the shape and dtype of `gate`.
    scale: None: one for each row, from its largest magnitude. Else a number
      above 0 or an array that broadcasts to [..., 1]: no row is waited for.
    dtype: float8_e4m3fn or int8.
    config: The block; None: a tuned one, else the planner's choice. Long rows
      that come from memory have none on Hopper, unless one is given: a kernel
      streams them through shared memory, whose silu may differ by a rounding.
    implementation: None: the best that can run the call; or a name.

  Returns:
    (codes, scale): the shape of `gate` in `dtype`; float32 [..., 1], or `scale`
    as float32 where it was given.

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device; not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call, or
      it is differentiated.
  """
  for name, array in (("gate", gate), ("up", up)):
    arguments.require_values(name, array)
  gate, up = arguments.as_array("gate", gate), arguments.as_array("up", up)
  request = _swiglu_quantize_request(
    gate, up, scale=scale, dtype=dtype, config=config, implementation=implementation
  )
  operands = (matrix(gate), matrix(up))
  if scale is None:
    codes, found = differentiable.quantize(request, sharding.vary_together(*operands))
    return QuantizedRows(codes.reshape(gate.shape), found.reshape(*gate.shape[:-1], 1))
  given = jnp.asarray(scale, jnp.float32)
  if given.size == 1:
    per_row = given.reshape(1, 1, 1)
  else:
    rows = math.prod(gate.shape[:-1])
    per_row = jnp.broadcast_to(given, (*gate.shape[:-1], 1)).reshape(1, rows, 1)
  *operands2, per_row = sharding.vary_together(*operands, per_row)
  (codes,) = differentiable.quantize(request, tuple(operands2), (per_row,))
  return QuantizedRows(codes.reshape(gate.shape), given)


def _quantize_request(
  x: Any, *, dtype: Any, config: RowConfig | None, implementation: str | None
) -> RowRequest:
  operand = check_operands(("x",), (x,))
  spec = RowCodes(code_dtype("dtype", dtype))
  return make("quantize_rows", spec, operand, config, implementation)


def _explain_quantize_rows(x: Any, **options: Any) -> dispatch.Explanation:
  """What `quantize_rows(x, **options)` would run."""
  x = arguments.as_array("x", x)
  request = _quantize_request(x, **options)
  call = f"{arguments.describe_array(x)}, out={request.spec.code_dtype.name}"
  return explanation(request, call, row_sizes(x))


@dispatch.explained_by(_explain_quantize_rows)
def quantize_rows(
  x: jax.Array,
  *,
  dtype: Any = jnp.float8_e4m3fn,
  config: RowConfig | None = None,
  implementation: str | None = None,
) -> QuantizedRows:
  """Codes and scale of each row: x ≈ codes·scale.

      scale = max |x| / c, c = 448 (e4m3) or 127 (int8);    code = saturate(round(x / scale))

  Both quotients are float32 divisions, the scale is used as it is stored, and
  the rounding to a code, to nearest even, is the only other one. A row of zeros
  has scale 1 and codes 0; a scale is at least 2^-126. An infinity has no part
  in the maximum and saturates; NaN stays NaN in e4m3 and becomes 0 in int8.

  Args:
    x: [..., columns] in bfloat16, float16, float32 or float64; any size.
    dtype: float8_e4m3fn or int8.
    config: The tile; None: a tuned one, else the planner's choice. With
      `block_cols` at least the row, the row is read once. Long rows that come
      from memory have none on Hopper, unless one is given.
    implementation: None: the best that can run the call; or a name.

  Returns:
    (codes, scale): the shape of x in `dtype`, and float32 [..., 1].

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device; not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call, or
      it is differentiated.

  Sources: e4m3's range, 448, is that of Micikevicius et al., "FP8 Formats for
  Deep Learning" (arXiv:2209.05433); int8 leaves out -128 to be symmetric.
  """
  arguments.require_values("x", x)
  x = arguments.as_array("x", x)
  request = _quantize_request(x, dtype=dtype, config=config, implementation=implementation)
  codes, scale = differentiable.quantize(request, (matrix(x),))
  return QuantizedRows(codes.reshape(x.shape), scale.reshape(*x.shape[:-1], 1))


# --- transpose


def _transpose_request(
  x: Any, *, config: RowConfig | None, implementation: str | None
) -> RowRequest:
  arguments.check_array("x", x, min_ndim=2)
  check_static("x", x)
  if jnp.issubdtype(x.dtype, jax.dtypes.extended):
    raise ValueError(
      f"x is {x.dtype}: expected numbers; x.swapaxes(-1, -2) moves keys of random numbers"
    )
  dtype = jnp.dtype(x.dtype)
  return make("transpose", Transpose(dtype), dtype, config, implementation)


def _explain_transpose(x: Any, **options: Any) -> dispatch.Explanation:
  """What `transpose(x, **options)` would run."""
  request = _transpose_request(x, **options)
  sizes = Sizes(math.prod(x.shape[:-2]), *x.shape[-2:])
  return explanation(request, arguments.describe_array(x), sizes)


@dispatch.explained_by(_explain_transpose)
def transpose(
  x: jax.Array, *, config: RowConfig | None = None, implementation: str | None = None
) -> jax.Array:
  """[..., N, M] of x [..., M, N]: the last two dimensions exchanged, bit for bit.

  Of one row or one column it is a reshape, by XLA, unless a kernel is asked for; and XLA's, too,
  where XLA's is the quicker one: of many 16-bit elements in a multiple of 8 rows. Of many in other
  numbers of rows, and in a multiple of 8 columns, it is a Hopper kernel's.

  Args:
    x: Any dtype; any size.
    config: The block of the portable kernel; None: a tuned one, else the planner's
      choice. The kernel leaves the layout in shared memory to Triton, so `layout`
      has to be "padded", the default.
    implementation: None: the best that can run the call; or a name. Gradients of
      "mosaic_gpu" are of the best that can run them.

  Returns:
    The dtype of x.

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device; not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call.

  Gradients are reverse-mode, of any order.
  """
  arguments.require_values("x", x)
  if not isinstance(x, jax.Array):
    x = jnp.asarray(x) if hasattr(x, "__array__") else x
  request = _transpose_request(x, config=config, implementation=implementation)
  *lead, rows, columns = x.shape
  out = differentiable.transpose(request, x.reshape(math.prod(lead), rows, columns))
  return out.reshape(*lead, columns, rows)
