"""A reduction over rows, whole or split for more parallel work: RMSNorm and its like."""

import dataclasses

from hw_profiles import dtypes
from hw_profiles.arguments import at_least, ceil_div


@dataclasses.dataclass(frozen=True)
class SplitReductionTraffic:
  """What normalising rows takes when each row is split in `num_splits`.

  Attributes:
    groups: Independent pieces of work in the first stage.
    split_width: Elements of a row's longest split.
    partials_bytes: All partial sums.
    scales_bytes: All row scales.
    input_read_bytes: The input: once where a row stays local, else twice.
    weight_read_bytes: The weight of each column, read for every row.
    output_write_bytes: The result.
    auxiliary_bytes: Partial sums and scales, written and read.
    total_bytes: All of these reads and writes.
    launches: 1, or 3: partial sums, their sum and the scale, its application.
    scratch_bytes_per_group: One split (or row) in the accumulator's dtype.
  """

  groups: int
  split_width: int
  partials_bytes: int
  scales_bytes: int
  input_read_bytes: int
  weight_read_bytes: int
  output_write_bytes: int
  auxiliary_bytes: int
  total_bytes: int
  launches: int
  scratch_bytes_per_group: int


def split_reduction_traffic(
  *,
  rows: int,
  width: int,
  num_splits: int,
  dtype: str,
  out_dtype: str | None = None,
  weight_dtype: str | None = None,
  has_weight: bool = True,
  accumulator_dtype: str = "float32",
  scale_reads_per_row: int | None = None,
) -> SplitReductionTraffic:
  """Splitting buys parallel work and small scratch with a second read of the input.

      whole   input + weight·rows + output
      split   2·input + weight·rows + output
              + 2·rows·splits·acc                partial sums: written, read
              + rows·acc·(1 + reads per row)     scales: written, read

  Splits differ by at most one element. How often a row's scale is read is a
  convention: once a row (72 KiB of auxiliary bytes in the example) or, as here
  unless told otherwise, by each split that applies it (100 KiB, which rounds to
  the 0.1 MiB that the example's source prints without saying which it means).

  Example: 1024 rows of 4096 bfloat16, whole: 1024 groups, 24 MiB, one launch;
  in 8 splits: 8192 groups, 32.1 MiB, three launches, and 2 KiB of scratch
  instead of 16.

  The sum's value depends on `num_splits`; to give a row the same bits in every
  batch, choose it from the width alone, not from the number of rows.

  Args:
    rows: Rows of the input, 0 or more.
    width: Elements of a row, at least 1.
    num_splits: Parts of each row, 1 to `width`; 1 is one kernel.
    dtype: Of the input.
    out_dtype: Of the result; None: `dtype`.
    weight_dtype: Of the weight; None: `dtype`.
    has_weight: Whether columns have a weight.
    accumulator_dtype: Of partial sums, scales and scratch.
    scale_reads_per_row: None: `num_splits`.

  Raises:
    ValueError: an argument is out of range or a dtype unknown.
  """
  at_least("rows", rows, 0)
  at_least("width", width, 1)
  at_least("num_splits", num_splits, 1)
  if num_splits > width:
    raise ValueError(
      f"num_splits={num_splits}: a row has {width} element(s); expected at most {width}"
    )
  if scale_reads_per_row is None:
    scale_reads_per_row = num_splits
  at_least("scale_reads_per_row", scale_reads_per_row, 1)
  is_split = num_splits > 1
  elements = rows * width
  accumulator_size = dtypes.size_bytes(accumulator_dtype)
  split_width = ceil_div(width, num_splits)
  partials = rows * num_splits * accumulator_size if is_split else 0
  scales = rows * accumulator_size if is_split else 0
  input_read = elements * dtypes.size_bytes(dtype) * (2 if is_split else 1)
  weight_read = (
    elements * dtypes.size_bytes(weight_dtype or dtype, name="weight_dtype") if has_weight else 0
  )
  output_write = elements * dtypes.size_bytes(out_dtype or dtype, name="out_dtype")
  auxiliary = 2 * partials + scales * (1 + scale_reads_per_row)
  return SplitReductionTraffic(
    groups=rows * num_splits,
    split_width=split_width,
    partials_bytes=partials,
    scales_bytes=scales,
    input_read_bytes=input_read,
    weight_read_bytes=weight_read,
    output_write_bytes=output_write,
    auxiliary_bytes=auxiliary,
    total_bytes=input_read + weight_read + output_write + auxiliary,
    launches=3 if is_split else 1,
    scratch_bytes_per_group=split_width * accumulator_size,
  )
