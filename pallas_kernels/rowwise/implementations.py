"""The implementations of the row-wise ops: when each can run, with which tile, and how."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import RowConfig
from pallas_kernels import choice, compat, planning, sharding
from pallas_kernels.choice import Choice
from pallas_kernels.device import TargetDevice, cores_of, target_device
from pallas_kernels.dispatch import Implementation, Refusal
from pallas_kernels.portable_support import compiled_refusal, e4m3_refusal, offset_refusal
from pallas_kernels.rowwise import (
  few_rows_gradient,
  hopper_refusals,
  hopper_rms_gradient,
  hopper_rms_norm,
  hopper_rows,
  hopper_transpose,
  portable_elements,
  portable_rms_gradient,
  portable_rows,
  portable_transpose,
  rms_gradient,
  rms_gradient_tiles,
  xla,
)
from pallas_kernels.rowwise.hopper_refusals import (
  XLA_ALIGNED_BYTES,
  l2_bytes_of,
  shared_bytes_of,
)
from pallas_kernels.rowwise.request import RowOperands, RowRequest
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.sizes import Sizes, count_refusal, sizes_of
from pallas_kernels.rowwise.specs import RmsNorm, RowCodes, SwigluGradient
from pallas_kernels.rowwise.strips import in_strips
from pallas_kernels.rowwise.transposing import Transpose

# Rows that a tile is planned for where the caller fixes the segments of a row:
# a row's bits must not depend on how many others there are.
_INVARIANT_ROWS = 1024

# A transpose of so many 16-bit elements is XLA's where rows of the result begin at multiples of 16
# bytes. H200, XLA's and the best tile of ours, us: 1024 x 4096 3.47 and 3.72, 1024 x 11008 from L2
# 11.97 and 12.38 and from memory 11.01 and 11.12, 65536 x 111 7.46 and 7.73, 65536 x 5000 365 and
# 393, 65536 x 12288 829 and 837; 1024 x 5000 4.44 either way. Where they begin anywhere ours is
# quicker (7239 x 4096: 50.7 and 37.9, 7239 x 12288: 152 and 144), or as quick (7239 x 111: 2.01 and
# 1.98), and so are ours of fewer elements (64 x 12288: 1.63 and 1.57). None between 64 x 12288
# and 1024 x 4096 was measured, nor elements of other sizes.
_FEWEST_XLA_TRANSPOSED = 2**21
_XLA_ELEMENT_BYTES = 2
_ROW_SPECS = (RowCodes, RmsNorm)
_GRADIENT_SPECS = (SwigluGradient, RmsNormGradient)
Arrays = tuple[jax.Array, ...]


def _problem(request: RowRequest, sizes: Sizes) -> Any:
  """The planner's view; None of float64, which no kernel computes in."""
  spec = request.spec
  if isinstance(spec, Transpose):
    return spec.problem(rows=sizes.rows, columns=sizes.columns, batch=sizes.batch)
  if jnp.dtype(jnp.float64) in _dtypes(request):
    return None
  if isinstance(spec, RmsNormGradient):
    return None
  return spec.problem(
    rows=sizes.batch * sizes.rows, columns=sizes.columns, dtype=request.dtype.name
  )


def _dtypes(request: RowRequest) -> tuple[jnp.dtype, ...]:
  """Every dtype that the call computes with or stores."""
  spec = request.spec
  if isinstance(spec, Transpose):
    return (request.dtype,)
  if isinstance(spec, RmsNormGradient):
    return (request.dtype, spec.out_dtype)
  between = getattr(spec, "intermediate_dtype", request.dtype)
  return (request.dtype, *spec.out_dtypes, between)


def _portable_refusal(
  one: Implementation, request: RowRequest, problem: Any, device: TargetDevice, sizes: Sizes
) -> Refusal | None:
  return (
    compiled_refusal(one, device)
    or count_refusal(request, sizes)
    or _transpose_refusal(request, sizes)
    or _dtype_refusal(one, request, sizes, device)
    or _tile_refusal(one, request, problem, device)
  )


def _is_reshape(sizes: Sizes) -> bool:
  """Whether the transpose has its elements in the order of x."""
  return 1 in (sizes.rows, sizes.columns)


def _transpose_refusal(request: RowRequest, sizes: Sizes) -> Refusal | None:
  """Of a kernel that nobody asked for and XLA does without (1 x 4096 in ours: 1.1 us) or beats."""
  asked_for = request.implementation is not None or request.config is not None
  if asked_for or not isinstance(request.spec, Transpose):
    return None
  if _is_reshape(sizes):
    return Refusal(
      "option",
      f"{sizes.rows} x {sizes.columns}: one row or column is transposed by a reshape, which moves"
      " nothing; the kernel copies it when it is asked for by name or with a config",
    )
  size = request.dtype.itemsize
  aligned = sizes.rows * size % XLA_ALIGNED_BYTES == 0
  if size == _XLA_ELEMENT_BYTES and aligned and sizes.elements >= _FEWEST_XLA_TRANSPOSED:
    return Refusal(
      "option",
      f"{sizes.rows} x {sizes.columns}: of {_FEWEST_XLA_TRANSPOSED} elements and more XLA's"
      f" transpose is the quicker one where rows of the result begin at multiples of"
      f" {XLA_ALIGNED_BYTES} bytes; the kernel runs when it is asked for by name or with a config",
    )
  return None


def _dtype_refusal(
  one: Implementation, request: RowRequest, sizes: Sizes, device: TargetDevice
) -> Refusal | None:
  spec = request.spec
  if isinstance(spec, Transpose):
    if not spec.movable:
      return Refusal("dtype", f"{request.dtype.name}: the kernel moves elements as integers")
    narrowest = spec.moved_as.itemsize
  else:
    if jnp.dtype(jnp.float64) in _dtypes(request):
      return Refusal("dtype", "float64 is wider than the kernels' float32 arithmetic")
    narrowest = min(dtype.itemsize for dtype in _dtypes(request))
  found = offset_refusal(one, "codes", sizes.elements) if narrowest == 1 else None
  # a transpose moves codes as integers
  if found is not None or isinstance(spec, Transpose):
    return found
  return e4m3_refusal(one, device, _dtypes(request))


def _tile_refusal(
  one: Implementation, request: RowRequest, problem: Any, device: TargetDevice
) -> Refusal | None:
  config = request.config
  if isinstance(request.spec, Transpose) and config is not None and config.layout != "padded":
    return Refusal(
      "option",
      f"config: layout={config.layout!r}: Triton lays the block out itself; leave it 'padded'",
    )
  return None if problem is None else planning.tile_refusal(one, problem, config, device)


def _xla_refusal(
  one: Implementation, request: RowRequest, problem: Any, device: TargetDevice, sizes: Sizes
) -> Refusal | None:
  del one, problem, device, sizes
  if request.config is not None:
    return Refusal("option", "config: XLA takes no tile")
  return None


def _run_portable(
  one: Implementation,
  request: RowRequest,
  operands: RowOperands,
  config: RowConfig | None,
  device: TargetDevice,
) -> Arrays:
  spec, interpret = request.spec, one.interpreted
  if isinstance(spec, Transpose):
    assert config is not None
    (x,) = operands.matrices
    return (spec.back(portable_transpose.run(spec.forth(x), config=config, interpret=interpret)),)
  if isinstance(spec, RmsNormGradient):
    return _run_portable_gradient(request, operands, cores=cores_of(device), interpret=interpret)
  assert config is not None
  tile = config

  def run(part: RowOperands) -> Arrays:
    options: dict[str, Any] = {"config": tile, "interpret": interpret}
    if isinstance(spec, _ROW_SPECS):
      problem = _problem(request, sizes_of(part))
      return portable_rows.run(spec, part.matrices, part.others, problem=problem, **options)
    # a gradient comes behind what read its operands or made the gradient that comes in
    last_first = isinstance(spec, SwigluGradient)
    return portable_elements.run(spec, part.matrices, part.others, last_first=last_first, **options)

  if not interpret:
    return run(operands)
  return in_strips(run, operands, block_rows=tile.block_rows)


def _run_portable_gradient(
  request: RowRequest, operands: RowOperands, *, cores: int, interpret: bool
) -> Arrays:
  """The gradients of rms_norm: of few long rows in a way of their own, unless a block is given."""
  sizes = sizes_of(operands)
  x, d_out, *d_sum = operands.matrices
  arguments = (request.spec, x, operands.others[0], d_out, d_sum[0] if d_sum else None)
  problem = {"groups": sizes.batch, "rows": sizes.rows, "columns": sizes.columns, "cores": cores}
  config = request.config
  if config is None:
    tiles = rms_gradient_tiles.few_rows_tiles(**problem)
    if tiles is not None:
      return few_rows_gradient.run(*arguments, tiles=tiles, cores=cores, interpret=interpret)
    config = rms_gradient_tiles.default_config(**problem)
  return portable_rms_gradient.run(*arguments, config=config, cores=cores, interpret=interpret)


def _run_hopper(
  one: Implementation,
  request: RowRequest,
  operands: RowOperands,
  config: RowConfig | None,
  device: TargetDevice,
) -> Arrays:
  del config
  spec = request.spec
  options: dict[str, Any] = {
    "cores": cores_of(device),
    "shared_bytes": shared_bytes_of(device),
    "interpret": compat.gpu_interpret_params() if one.interpreted else None,
  }
  l2_bytes = l2_bytes_of(device)
  if isinstance(spec, Transpose):
    (x,) = operands.matrices
    return (spec.back(hopper_transpose.run(spec.forth(x), **options)),)
  if isinstance(spec, RmsNormGradient):
    x, d_out = operands.matrices
    return hopper_rms_gradient.run(spec, x, operands.others[0], d_out, **options)
  if isinstance(spec, RmsNorm):
    return hopper_rms_norm.run(
      spec, operands.matrices, operands.others[0], l2_bytes=l2_bytes, **options
    )
  return hopper_rows.run(spec, operands.matrices, l2_bytes=l2_bytes, **options)


def _run_xla(
  one: Implementation,
  request: RowRequest,
  operands: RowOperands,
  config: RowConfig | None,
  device: TargetDevice,
) -> Arrays:
  del one, config, device
  spec = request.spec
  if isinstance(spec, Transpose):
    (x,) = operands.matrices
    sizes = sizes_of(operands)
    if _is_reshape(sizes):
      return (x.reshape(sizes.batch, sizes.columns, sizes.rows),)
    return (jnp.swapaxes(x, 1, 2),)
  if isinstance(spec, RmsNormGradient):
    x, d_out, *d_sum = operands.matrices
    return rms_gradient.xla(spec, x, operands.others[0], d_out, d_sum[0] if d_sum else None)
  if isinstance(spec, _ROW_SPECS):
    splits = getattr(spec, "num_splits", None) or 1
    return xla.rows(spec, operands.matrices, operands.others, num_splits=splits)
  return xla.elements(spec, operands.matrices, operands.others)


def _portable(name: str, schedule: str) -> Implementation:
  return Implementation(name, schedule=schedule, refusal=_portable_refusal, run=_run_portable)


_XLA = Implementation("xla", schedule=None, refusal=_xla_refusal, run=_run_xla)
_ROWS = (_portable("triton", "streaming"), _XLA, _portable("interpret", "streaming"))


def _with_hopper(refusal: Any, others: tuple[Implementation, ...]) -> tuple[Implementation, ...]:
  """The Hopper kernel, the others, and the Hopper kernel interpreted."""
  compiled, interpreted = (
    Implementation(name, schedule=None, refusal=refusal, run=_run_hopper)
    for name in ("mosaic_gpu", "mosaic_gpu_interpret")
  )
  return (compiled, *others, interpreted)


_RMS_GRADIENTS = _with_hopper(hopper_refusals.of_rms_gradient, _ROWS)
_WHOLE_ROWS = _with_hopper(hopper_refusals.of_rows, _ROWS)
_TRANSPOSES = _with_hopper(
  hopper_refusals.of_transpose,
  (_portable("triton", "shared_tile"), _XLA, _portable("interpret", "shared_tile")),
)


def _table(spec: Any) -> tuple[Implementation, ...]:
  if isinstance(spec, Transpose):
    return _TRANSPOSES
  if isinstance(spec, _ROW_SPECS):
    return _WHOLE_ROWS
  return _RMS_GRADIENTS if isinstance(spec, RmsNormGradient) else _ROWS


def choose(request: RowRequest, sizes: Sizes, device: TargetDevice) -> Choice:
  """Which implementation and tile serve a request on operands of these sizes.

  Raises:
    hw_profiles.InfeasibleTileError, NotImplementedError: see `dispatch.decide`.
  """
  problem = _problem(request, sizes)
  config = request.config
  if isinstance(request.spec, SwigluGradient):
    config = request.spec.tile(sizes.elements, cores=cores_of(device))
  chosen = choice.choose(
    f"the gradient of {request.op}" if isinstance(request.spec, _GRADIENT_SPECS) else request.op,
    _table(request.spec),
    requested=request.implementation,
    config=config,
    problem=problem,
    device=device,
    refusal=lambda one: one.refusal(one, request, problem, device, sizes),
    plan_as=_invariant(request, problem),
    is_empty=sizes.elements == 0,
  )
  if chosen.config is None or chosen.config.layout == "padded":
    return chosen
  # the planner weighs layouts that Triton does not let a kernel choose
  config, plan = planning.resolve(
    chosen.implementation, problem, dataclasses.replace(chosen.config, layout="padded"), device
  )
  return dataclasses.replace(chosen, config=config, plan=plan)


def _invariant(request: RowRequest, problem: Any) -> Any:
  """The problem that the tile is chosen for; None: the one that is there."""
  if problem is None or getattr(request.spec, "num_splits", None) is None:
    return None
  return dataclasses.replace(problem, rows=_INVARIANT_ROWS)


def run(request: RowRequest, operands: RowOperands) -> Arrays:
  """Runs a request on its operands; every result has the batch in front."""
  device = target_device()
  sizes = sizes_of(operands)
  operands = _one_batch(operands, sizes.batch)
  grouped = isinstance(request.spec, (Transpose, RmsNormGradient))
  folded = operands if grouped else _fold(operands, sizes)
  # what is more rows is no batch to a kernel that takes none
  chosen = choose(request, sizes_of(folded), device)
  if sizes.elements == 0:
    empty = _empty(request, sizes)
    return tuple(sharding.vary_together(x, operands.matrices[0])[0] for x in empty)
  one = chosen.implementation
  # Mosaic GPU kernels drop the mesh axes that their operands vary over
  outs = tuple(
    sharding.vary_together(out, operands.matrices[0])[0]
    for out in one.run(one, request, folded, chosen.config, device)
  )
  if grouped:
    return outs
  return tuple(out.reshape(sizes.batch, sizes.rows, out.shape[-1]) for out in outs)


def _one_batch(operands: RowOperands, batch: int) -> RowOperands:
  """Matrices with the whole batch each."""
  return operands._replace(
    matrices=tuple(jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in operands.matrices)
  )


def _fold(operands: RowOperands, sizes: Sizes) -> RowOperands:
  """The batch as more rows, where nothing but the matrices tells its members apart."""
  batch, rows, columns = sizes.batch, sizes.rows, sizes.columns
  if batch == 1 or any(x.shape[0] != 1 and x.shape[1] == 1 for x in operands.others):
    return operands
  return RowOperands(
    tuple(x.reshape(1, batch * rows, columns) for x in operands.matrices),
    tuple(
      x if x.shape[1] == 1 else jnp.broadcast_to(x, (batch, rows, 1)).reshape(1, batch * rows, 1)
      for x in operands.others
    ),
  )


def _empty(request: RowRequest, sizes: Sizes) -> Arrays:
  """The results where there are no elements: empty, and what sums of nothing are."""
  spec, (batch, rows, columns) = request.spec, dataclasses.astuple(sizes)
  if isinstance(spec, Transpose):
    return (jnp.zeros((batch, columns, rows), request.dtype),)
  if isinstance(spec, RmsNormGradient):
    return (
      jnp.zeros((batch, rows, columns), spec.dtype),
      jnp.zeros((batch, 1, columns), spec.weight_dtype),
    )
  summed = getattr(spec, "sum_dtypes", ())
  outs = tuple(jnp.zeros((batch, rows, columns), dtype) for dtype in (*spec.out_dtypes, *summed))
  scales = getattr(spec, "row_outputs", 0)
  return (*outs, *(jnp.ones((batch, rows, 1), jnp.float32) for _ in range(scales)))
