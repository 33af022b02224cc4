"""The public `rms_norm`."""

from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import RowConfig
from pallas_kernels import arguments, dispatch, sharding
from pallas_kernels.rowwise import differentiable
from pallas_kernels.rowwise.api import (
  QuantizedRows,
  explanation,
  make,
  matrix,
  row_sizes,
)
from pallas_kernels.rowwise.request import RowRequest, check_number, check_operands, code_dtype
from pallas_kernels.rowwise.specs import RmsNorm


def _request(
  x: Any,
  weight: Any,
  *,
  residual: Any,
  eps: float,
  weight_offset: float,
  cast_before_weight: bool,
  out_dtype: Any,
  quantize_dtype: Any,
  num_splits: int | None,
  config: RowConfig | None,
  implementation: str | None,
) -> RowRequest:
  operands = {"x": x} if residual is None else {"x": x, "residual": residual}
  dtype = check_operands(operands, operands.values())
  arguments.check_array("weight", weight, min_ndim=1)
  arguments.check_float("weight", weight)
  if tuple(weight.shape) != tuple(x.shape[-1:]):
    raise ValueError(
      f"weight has shape {tuple(weight.shape)}: expected {tuple(x.shape[-1:])}, one value for each "
      "column of x"
    )
  if not isinstance(cast_before_weight, bool):
    raise ValueError(f"cast_before_weight={cast_before_weight!r}: expected True or False")
  if out_dtype is not None and quantize_dtype is not None:
    raise ValueError(
      f"out_dtype={out_dtype!r} and quantize_dtype={quantize_dtype!r}: expected one of them; codes "
      "are the result where they are asked for"
    )
  out = dtype
  if quantize_dtype is not None:
    out = code_dtype("quantize_dtype", quantize_dtype)
  elif out_dtype is not None:
    out = arguments.float_dtype("out_dtype", out_dtype)
  spec = RmsNorm(
    eps=check_number("eps", eps, lowest=0.0),
    weight_offset=check_number("weight_offset", weight_offset),
    normalised_dtype=dtype if cast_before_weight else None,
    weight_dtype=jnp.dtype(weight.dtype),
    out_dtype=out,
    sum_dtype=None if residual is None else dtype,
    num_splits=_checked_splits(num_splits, x.shape[-1]),
  )
  request = make("rms_norm", spec, dtype, config, implementation)
  arguments.check_one_split(spec.num_splits, config)
  return request


def _checked_splits(num_splits: Any, columns: int) -> int | None:
  if num_splits is None:
    return None
  whole = isinstance(num_splits, int) and not isinstance(num_splits, bool)
  if not whole or not 1 <= num_splits <= max(columns, 1):
    raise ValueError(
      f"num_splits={num_splits!r}: expected None or an integer from 1 to {max(columns, 1)}, the "
      "columns of x"
    )
  return int(num_splits)


def _explain(x: Any, weight: Any, **options: Any) -> dispatch.Explanation:
  """What `rms_norm(x, weight, **options)` would run."""
  x, weight = arguments.as_array("x", x), arguments.as_array("weight", weight)
  options["residual"] = arguments.as_array("residual", options["residual"])
  request = _request(x, weight, **options)
  spec = request.spec
  parts = [arguments.describe_array(x), arguments.describe_array(weight)]
  if spec.sum_dtype is not None:
    parts.append("residual")
  if spec.num_splits is not None:
    parts.append(f"num_splits={spec.num_splits}")
  parts.append(f"out={spec.out_dtype.name}")
  # codes have none
  gradient = None
  if options["quantize_dtype"] is None:
    gradient = differentiable.rms_norm_gradient(request, jnp.dtype(weight.dtype))
  return explanation(request, ", ".join(parts), row_sizes(x), gradient=gradient)


@dispatch.explained_by(_explain)
def rms_norm(
  x: jax.Array,
  weight: jax.Array,
  *,
  residual: jax.Array | None = None,
  eps: float = 1e-6,
  weight_offset: float = 0.0,
  cast_before_weight: bool = False,
  out_dtype: Any = None,
  quantize_dtype: Any = None,
  num_splits: int | None = None,
  config: RowConfig | None = None,
  implementation: str | None = None,
) -> Any:
  """y = s·(mean(s²) + eps)^(-1/2)·(weight + weight_offset) by rows, s = x or x + residual.

  Everything is float32 (float64 for float64 operands). The mean is that of
  squares which can neither overflow nor vanish: the row is scaled by a power of
  two first, which moves no bit of the sum. Two conventions are in use for where
  y is rounded:

      round_out(n·(weight + offset))               default, n the normalised row
      round_out(round_x(n)·(weight + offset))      cast_before_weight

  A row may be summed in segments of ceil(columns / num_splits) columns, the
  last ones shorter, whose sums are added up one after another, the first
  segment first. With `num_splits` given a row's bits depend on nothing else,
  however many rows there are; without it the planner chooses the segments
  together with the tile, by the number of rows, and a kernel may add the sums
  of many up in the order of a tree, which is the same in every call.

  Args:
    x: [..., columns] in bfloat16, float16, float32 or float64; any size.
    weight: [columns], any of these dtypes.
    residual: Added to x first, of its shape and dtype; the sum is rounded to
      that dtype, is what is normalised, and is returned, too.
    eps: Added to the mean; a finite number of at least 0.
    weight_offset: Added to the weight; a finite number: 1 for weights stored as
      offsets from 1.
    cast_before_weight: Round the normalised row to the dtype of x before the
      weight.
    out_dtype: Dtype of y; None: that of x.
    quantize_dtype: None; or float8_e4m3fn or int8: y is not rounded but
      quantised, a scale for each row, as by `quantize_rows` of float32 y.
    num_splits: Segments of a row, or None; a config with another number is an
      error.
    config: The tile; None: a tuned one, else the planner's choice. Of the
      gradient it says nothing. Long rows that come from memory have none on
      Hopper, unless one is given: a kernel streams them through shared memory,
      whose sums have another order; with `num_splits` the order is fixed.
    implementation: None: the best that can run the call; or a name.

  Returns:
    y, [..., columns]; with `quantize_dtype` (codes, scale) in its place, codes
    [..., columns] and float32 scales [..., 1]; with `residual` a pair of that
    and x + residual.

  Raises:
    ValueError: an argument is wrong.
    hw_profiles.InfeasibleTileError: `config` does not fit the device; not of
      "interpret", which runs any tile (`explain` says which no GPU would).
    NotImplementedError: the implementation asked for cannot run this call, or
      codes are differentiated.

  Gradients are reverse-mode, of first order: one pass over x and y's gradient,
  and partial sums of the weight's gradient that are added up in an order fixed
  by their number; of few long rows two passes without partial sums; of many on
  Hopper a kernel of its own (`explain` says which implementation runs). Roundings
  count as the identity.

  Source: Zhang and Sennrich, "Root Mean Square Layer Normalization"
  (arXiv:1910.07467); eps inside of the root, as Llama and Qwen have it.
  """
  for name, array in (("x", x), ("weight", weight), ("residual", residual)):
    arguments.require_values(name, array)
  x, weight = arguments.as_array("x", x), arguments.as_array("weight", weight)
  residual = arguments.as_array("residual", residual)
  request = _request(
    x,
    weight,
    residual=residual,
    eps=eps,
    weight_offset=weight_offset,
    cast_before_weight=cast_before_weight,
    out_dtype=out_dtype,
    quantize_dtype=quantize_dtype,
    num_splits=num_splits,
    config=config,
    implementation=implementation,
  )
  matrices = (matrix(x),) if residual is None else (matrix(x), matrix(residual))
  *matrices2, weights = sharding.vary_together(*matrices, weight.reshape(1, 1, -1))
  if quantize_dtype is not None:
    codes, *sums, scale = differentiable.quantize(request, tuple(matrices2), (weights,))
    out: Any = QuantizedRows(codes.reshape(x.shape), scale.reshape(*x.shape[:-1], 1))
  else:
    summed = None if residual is None else matrices2[1]
    out, *sums = differentiable.rms_norm(request, matrices2[0], summed, weights)
    out = out.reshape(x.shape)
  return out if residual is None else (out, sums[0].reshape(x.shape))
