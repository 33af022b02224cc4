"""Three ways to divide one matmul among executors: by M, by N or by K."""

import dataclasses
from typing import Literal

from hw_profiles import dtypes
from hw_profiles.arguments import at_least, ceil_div, instance

SplitAxis = Literal["m", "n", "k"]
SPLIT_AXES: tuple[SplitAxis, ...] = ("m", "n", "k")


@dataclasses.dataclass(frozen=True)
class MatmulSplit:
  """What dividing C = A·B among `parts` executors moves.

  Attributes:
    part_size: Rows, columns or depth of the largest part.
    a_read_bytes: A, over all executors; as the others.
    b_read_bytes: B.
    replicated_bytes: What of these reads is a second or later copy.
    partial_write_bytes: Partial sums of C that executors hand over.
    partial_read_bytes: The same, read to be added.
    c_write_bytes: C, once.
    total_bytes: All reads and writes.
    launches: 1, or 2 where partial sums are added by a second kernel.
    output_is_sharded: Whether each executor ends with its own part of C.
  """

  part_size: int
  a_read_bytes: int
  b_read_bytes: int
  replicated_bytes: int
  partial_write_bytes: int
  partial_read_bytes: int
  c_write_bytes: int
  total_bytes: int
  launches: int
  output_is_sharded: bool


def matmul_split_traffic(
  *,
  m: int,
  k: int,
  n: int,
  axis: SplitAxis,
  parts: int,
  in_dtype: str,
  acc_dtype: str = "float32",
  out_dtype: str | None = None,
) -> MatmulSplit:
  """Each executor reads its operands once; tiling inside an executor comes on top.

      by M   A divided, B read `parts` times, C divided
      by N   A read `parts` times, B divided, C divided
      by K   A and B divided; `parts` partial C of accumulator size are written
             and read before C is written

  An output tile per thread block splits by M and by N, and walks K in place: no
  partial sum leaves it. On several devices the same bytes cross the links.

  Example: 1024 x 4096 x 12288 in bfloat16 among 4: 416 MiB by M (B is the large
  operand and is replicated), 152 by N, 512 by K.

  Args:
    m: Rows of A and C; 0 or more, as k and n.
    k: Columns of A, rows of B.
    n: Columns of B and C.
    axis: "m", "n" or "k".
    parts: Executors, at least 1 and at most the size of the axis.
    in_dtype: Dtype of A and B.
    acc_dtype: Dtype of partial sums.
    out_dtype: Dtype of C; None: `in_dtype`.

  Raises:
    ValueError: an argument is out of range or a dtype unknown.
  """
  instance("axis", axis, str)
  sizes = {"m": m, "n": n, "k": k}
  for name, size in sizes.items():
    at_least(name, size, 0)
  at_least("parts", parts, 1)
  if axis not in sizes:
    raise ValueError(f"axis={axis!r}: expected one of {', '.join(SPLIT_AXES)}")
  if parts > max(sizes[axis], 1):
    raise ValueError(f"parts={parts}: {axis}={sizes[axis]}; expected at most {max(sizes[axis], 1)}")
  in_size = dtypes.size_bytes(in_dtype, name="in_dtype")
  a_bytes, b_bytes = m * k * in_size, k * n * in_size
  a_copies = parts if axis == "n" else 1
  b_copies = parts if axis == "m" else 1
  acc_size = dtypes.size_bytes(acc_dtype, name="acc_dtype")
  partial = parts * m * n * acc_size if axis == "k" and parts > 1 else 0
  c_write = m * n * dtypes.size_bytes(out_dtype or in_dtype, name="out_dtype")
  return MatmulSplit(
    part_size=ceil_div(sizes[axis], parts),
    a_read_bytes=a_copies * a_bytes,
    b_read_bytes=b_copies * b_bytes,
    replicated_bytes=(a_copies - 1) * a_bytes + (b_copies - 1) * b_bytes,
    partial_write_bytes=partial,
    partial_read_bytes=partial,
    c_write_bytes=c_write,
    total_bytes=a_copies * a_bytes + b_copies * b_bytes + 2 * partial + c_write,
    launches=2 if partial else 1,
    output_is_sharded=axis != "k" and parts > 1,
  )
