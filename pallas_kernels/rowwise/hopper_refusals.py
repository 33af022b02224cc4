"""What the row-wise Hopper kernels do not take, and what they are not the quickest for.

A call that names the kernel is refused only what it cannot do.
"""

import dataclasses
from typing import Any

from pallas_kernels import compat
from pallas_kernels.device import TargetDevice, cores_of, planning_profile
from pallas_kernels.dispatch import Implementation, Refusal
from pallas_kernels.hopper import refusals
from pallas_kernels.hopper.tma import TMA_PITCH_BYTES
from pallas_kernels.rowwise import (
  hopper_rms_gradient,
  hopper_rms_norm,
  hopper_rows,
  row_stream,
  transpose_blocks,
)
from pallas_kernels.rowwise.request import RowRequest
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.sizes import Sizes, count_refusal
from pallas_kernels.rowwise.specs import RmsNorm
from pallas_kernels.rowwise.transpose_blocks import TransposeBlocks

# Rows stream through shared memory where they come from memory, not from L2. On an H200, Hopper
# kernel and portable one, us, when this was chosen: codes and scales of silu(gate)·up 7239 x 12288
# 109 and 124, 7239 x 5000 45 and 54, 1024 x 11008 17.2 and 19.4; of rows as they are 7239 x 12288
# 65 and 75, 7239 x 5000 28 and 32. By a block for each row the Hopper kernel takes 101, 42.4, 15.3,
# 59.2 and 25.5 now; of fewer rows and elements that was not measured.
_SHORTEST_STREAMED = 4096
_FEWEST_STREAMED = 7
_LEAST_STREAMED = 7_000_000
# The gradient of rms_norm, behind the result: 7239 x 11008 119 and 171, 7239 x 16384 233 and 317,
# 7239 x 5000 58 and 74, 528 x 11008 13.7 and 14.9, 1024 x 4096 9.2 and 10.0, 7239 x 2048 27 and 30,
# but 65536 x 1024 138 and 115. By columns the fewest elements; of columns between 1024 and 2048, of
# fewer elements and of fewer rows a core nothing was measured.
_LEAST_OF_GRADIENT = {2048: 14_000_000, 4096: 4_000_000}
_FEWEST_OF_GRADIENT = 4
# rms_norm likewise, whose rows L2 is told to keep where it does not hold them: 65536 x 4096 246
# and 269, 7239 x 4096 26.2 and 28.2, 65536 x 12288 739 and 867; with a residual 65536 x 4096 499
# and 523 (a stream of the same bytes 504), 7239 x 5000 68 and 79 (67). Rows that are no whole lines
# of 128 bytes are shifted there: 65536 x 5000 311 and 345, 7239 x 5000 33.9 and 36.1. Of what it
# holds, by blocks that stay, 1024 x 11008 11.6 and 12.9, but 4096 x 4096 16.6 and 16.0, 2048 x 4096
# 9.4 and 8.9, and 2048 x 5000, not shifted, 12.1 and 11.1: with a residual whole lines only. By a
# block for each row the last three were not measured.
_SHORTEST_NORM = 8192
_LINE_COLUMNS = 64
# Of what the kernels take.
_ELEMENT_BYTES = 2
# Where rows of a transposed matrix begin at multiples of so many bytes XLA's is as quick, as the
# times in `implementations` say.
XLA_ALIGNED_BYTES = 16
# Where they begin anywhere blocks of x go through shared memory. H200, cold L2, us, Hopper kernel
# and portable one: 7239 x 4096 29.3 and 37.7, 7239 x 5000 40.7 and 53.7, 7239 x 11008 87.3 and
# 121.6, 7239 x 12288 98.0 and 137.9. The first is 16 blocks for each core; of 8 a core that has one
# more than the others takes an eighth of what is won, at most. Fewer were not measured.
_FEWEST_BLOCKS = 8
# Places in the result are int32.
_LARGEST_PLACED = 2**31 - 1
# Columns of 16 bytes, of which TMA wants a whole number from row to row.
_COPIED_MULTIPLE = TMA_PITCH_BYTES // _ELEMENT_BYTES


def of_rows(
  one: Implementation, request: RowRequest, problem: Any, device: TargetDevice, sizes: Sizes
) -> Refusal | None:
  """Of whole rows that pass through shared memory: their codes and scales, or rms_norm."""
  del problem
  found = refusals.device_refusal(one, device) or count_refusal(request, sizes)
  if found is not None:
    return found
  if request.dtype.itemsize != _ELEMENT_BYTES:
    return Refusal("dtype", f"{request.dtype.name}: the kernel takes rows of 16 bits")
  if not compat.CARRIES_ARRAYS:
    return Refusal("option", refusals.OLDER_JAX)
  if request.config is not None:
    return Refusal("option", "config: the kernel's pieces of a row follow from its columns")
  found = _norm_refusal(request, sizes) if isinstance(request.spec, RmsNorm) else None
  if found is not None:
    return found
  found = _columns_refusal(request.spec, sizes.columns, device)
  if found is not None or request.implementation is not None:
    return found
  if isinstance(request.spec, RmsNorm):
    found = _norm_columns_refusal(request.spec, sizes, l2_bytes_of(device))
  if found is not None:
    return found
  sizes = dataclasses.replace(sizes, batch=1, rows=sizes.batch * sizes.rows)
  return _few_refusal(
    sizes, device, least={_SHORTEST_STREAMED: _LEAST_STREAMED}, rows=_FEWEST_STREAMED
  )


def _few_refusal(
  sizes: Sizes, device: TargetDevice, *, least: dict[int, int], rows: int
) -> Refusal | None:
  """Of rows that are not streamed unless the kernel is asked for by name.

  Args:
    sizes: Of one matrix.
    device: Which it is for.
    least: Columns from which on rows are streamed, and of how many elements.
    rows: For each core, the fewest.
  """
  columns = max((one for one in least if one <= sizes.columns), default=min(least))
  fewest = rows * cores_of(device)
  if sizes.columns < columns:
    what, wanted = f"{sizes.columns} columns", f"{columns}"
  elif sizes.rows < fewest:
    what, wanted = f"{sizes.rows} rows", f"{fewest}, {rows} for each core,"
  elif sizes.rows * sizes.columns < least[columns]:
    what, wanted = f"{sizes.rows} x {sizes.columns}", f"{least[columns]} elements"
  else:
    return None
  return Refusal("option", f"{what}: the kernel is preferred from {wanted} on; by name it runs")


def _norm_refusal(request: RowRequest, sizes: Sizes) -> Refusal | None:
  """Of what rms_norm has beside rows."""
  spec: RmsNorm = request.spec
  if spec.quantized:
    return Refusal("option", "codes have a second round, of the largest result")
  if spec.num_splits is not None:
    return Refusal("option", "num_splits: the kernel adds the squares of a row up as a whole")
  for dtype in (*spec.out_dtypes, *spec.sum_dtypes):
    if dtype.itemsize != _ELEMENT_BYTES:
      return Refusal("dtype", f"{dtype.name}: the kernel has results of 16 bits")
  if sizes.batch > 1:
    return Refusal("option", f"a batch of {sizes.batch} matrices: the kernel has one weight")
  return None


def _norm_columns_refusal(spec: RmsNorm, sizes: Sizes, l2_bytes: int) -> Refusal | None:
  """Of rows that rms_norm's portable kernel is as fast with, unless the other is asked for."""
  if sizes.elements * _ELEMENT_BYTES * (1 + len(spec.sum_dtypes)) > l2_bytes:
    return None
  if spec.sum_dtypes:
    if sizes.columns % _LINE_COLUMNS == 0:
      return None
    return Refusal(
      "option",
      f"{sizes.columns} columns with a residual: of rows that L2 holds the kernel is preferred for"
      f" multiples of {_LINE_COLUMNS}; by name it runs",
    )
  if sizes.columns >= _SHORTEST_NORM:
    return None
  return Refusal(
    "option",
    f"{sizes.columns} columns without a residual: of rows that L2 holds the portable kernel is as"
    f" fast with fewer than {_SHORTEST_NORM}; by name it runs",
  )


def _columns_refusal(spec: Any, columns: int, device: TargetDevice) -> Refusal | None:
  """Of rows that no group of warpgroups can share, or that shared memory has too few of."""
  fewest, step, most = row_stream.COPIED_COLUMNS, row_stream.COLUMNS_STEP, row_stream.MOST_COLUMNS
  if columns < fewest or columns % step:
    return Refusal(
      "option", f"{columns} columns: the kernel takes a multiple of {step} from {fewest} on"
    )
  if columns > most:
    return Refusal(
      "option",
      f"{columns} columns: the kernel takes {most} at most, {row_stream.LARGEST_SHARE} in each"
      " thread's registers",
    )
  shared = shared_bytes_of(device)
  if _row_stages(spec, columns, shared):
    return None
  narrower = range(columns - step, fewest - 1, -step)
  widest = next(one for one in narrower if _row_stages(spec, one, shared))
  weights = f" beside {spec.weight_dtype.name} weights" if isinstance(spec, RmsNorm) else ""
  return Refusal(
    "option",
    f"{columns} columns: two rows of all operands for each group of warpgroups{weights} have to fit"
    f" in {shared} bytes of shared memory; of narrower rows those of {widest} columns do",
  )


def _row_stages(spec: Any, columns: int, shared_bytes: int) -> int:
  """Stages of a ring of rows; 0: there are too few."""
  if isinstance(spec, RmsNorm):
    return hopper_rms_norm.stages(spec, columns, shared_bytes=shared_bytes)
  return hopper_rows.stages(columns, matrices=1 + spec.swiglu, shared_bytes=shared_bytes)


def of_rms_gradient(
  one: Implementation, request: RowRequest, problem: Any, device: TargetDevice, sizes: Sizes
) -> Refusal | None:
  """Of the gradient of rms_norm, where rows of x and d_y pass through shared memory."""
  del problem
  spec: RmsNormGradient = request.spec
  found = refusals.device_refusal(one, device) or count_refusal(request, sizes)
  if found is not None:
    return found
  for dtype in (request.dtype, spec.out_dtype, spec.weight_dtype):
    if dtype.itemsize != _ELEMENT_BYTES:
      return Refusal("dtype", f"{dtype.name}: the kernel takes rows and weights of 16 bits")
  if not compat.CARRIES_ARRAYS:
    return Refusal("option", refusals.OLDER_JAX)
  if sizes.batch > 1:
    return Refusal(
      "option", f"a batch of {sizes.batch}: the kernel has one weight and its gradient"
    )
  if spec.sum_gradient:
    return Refusal("option", "the gradient of x + residual is a third row, with room for two")
  if not hopper_rms_gradient.stages(sizes.columns, shared_bytes=shared_bytes_of(device)):
    return Refusal(
      "option",
      f"{sizes.columns} columns: the kernel takes a multiple of 8 from 64 to"
      f" {hopper_rms_gradient.MOST_COLUMNS}, and two rows of x and of d_y for each group of"
      " warpgroups have to fit in shared memory",
    )
  if request.implementation is not None:
    return None
  return _few_refusal(sizes, device, least=_LEAST_OF_GRADIENT, rows=_FEWEST_OF_GRADIENT)


def of_transpose(
  one: Implementation, request: RowRequest, problem: Any, device: TargetDevice, sizes: Sizes
) -> Refusal | None:
  """Of a transpose whose blocks pass through shared memory."""
  del problem
  found = refusals.device_refusal(one, device) or count_refusal(request, sizes)
  if found is not None:
    return found
  if request.dtype.itemsize != _ELEMENT_BYTES or not request.spec.movable:
    return Refusal("dtype", f"{request.dtype.name}: the kernel moves elements of 16 bits")
  if not compat.SWIZZLES_UNTILED:
    return Refusal("option", "needs jax 0.11 or later, where a swizzled block may be untiled")
  if request.config is not None:
    return Refusal("option", "config: the kernel has blocks of one size")
  if sizes.batch > 1:
    return Refusal("option", f"a batch of {sizes.batch} matrices: the kernel takes one")
  if sizes.columns % _COPIED_MULTIPLE:
    return Refusal(
      "option", f"{sizes.columns} columns: the kernel copies rows of a multiple of 16 bytes"
    )
  if sizes.rows < transpose_blocks.HEIGHT or sizes.columns < transpose_blocks.WIDTH:
    return Refusal(
      "option",
      f"{sizes.rows} x {sizes.columns}: the kernel takes {transpose_blocks.HEIGHT} x"
      f" {transpose_blocks.WIDTH} and more",
    )
  if sizes.elements > _LARGEST_PLACED:
    return Refusal("option", f"{sizes.elements} elements: the kernel counts to {_LARGEST_PLACED}")
  return _few_blocks_refusal(sizes, device) if request.implementation is None else None


def _few_blocks_refusal(sizes: Sizes, device: TargetDevice) -> Refusal | None:
  """Of what is transposed otherwise unless the kernel is asked for by name."""
  if sizes.rows * _ELEMENT_BYTES % XLA_ALIGNED_BYTES == 0:
    return Refusal(
      "option",
      f"{sizes.rows} x {sizes.columns}: rows of the result begin at multiples of"
      f" {XLA_ALIGNED_BYTES} bytes, which others store as quickly; by name it runs",
    )
  blocks = TransposeBlocks(sizes.rows, sizes.columns).count
  if blocks >= _FEWEST_BLOCKS * cores_of(device):
    return None
  return Refusal(
    "option",
    f"{sizes.rows} x {sizes.columns}: {blocks} blocks, and the kernel is preferred from"
    f" {_FEWEST_BLOCKS} for each core on; by name it runs",
  )


def shared_bytes_of(device: TargetDevice) -> int:
  """Shared memory of a thread block."""
  return planning_profile(device)[0].max_shared_bytes_per_block


def l2_bytes_of(device: TargetDevice) -> int:
  """L2, all of it."""
  return planning_profile(device)[0].l2_bytes
