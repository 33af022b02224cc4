"""Loop orders of a matrix product: strides, lines, reuse and outputs kept alive."""

import dataclasses
import itertools

from hw_profiles.arguments import at_least
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.sm_tiling.coalescing import LINE_BYTES

LOOP_ORDERS = tuple("".join(order) for order in itertools.permutations("ijk"))


@dataclasses.dataclass(frozen=True)
class OperandAccess:
  """How the innermost loop walks one matrix.

  Attributes:
    stride_elements: From one iteration to the next; 0: the same element.
    elements: Different elements of one run of the innermost loop.
    lines: Cache lines these lie in, the first at the start of a line.
  """

  stride_elements: int
  elements: int
  lines: int


@dataclasses.dataclass(frozen=True)
class LoopAccess:
  """Access of C[i, j] += A[i, k] · B[k, j] in one loop order, all row-major.

  Attributes:
    operands: "A", "B" and "C".
    live_outputs: Partial sums that are begun and not finished at once.
    live_output_bytes: What they take.
  """

  operands: FrozenMap[str, OperandAccess]
  live_outputs: int
  live_output_bytes: int


def loop_access(
  order: str,
  *,
  m: int,
  k: int,
  n: int,
  element_bytes: int = 4,
  accumulator_bytes: int = 4,
  line_bytes: int = LINE_BYTES,
) -> LoopAccess:
  """Strides of the innermost loop, lines it touches, and outputs it keeps alive.

  With B row-major, i-j-k steps through a column of B, n elements apart: a line
  an element, but one partial sum. i-k-j steps through rows of B and C and reads
  A[i, k] once for all j, but keeps a row of n partial sums, which may not fit
  in registers. Outputs alive are those of the loops inside k.

  Args:
    order: The loops from outermost to innermost, for example "ikj".
    m: Rows of A and C (loop i); at least 1, as all sizes.
    k: Columns of A (loop k).
    n: Columns of B and C (loop j).
    element_bytes: Of an element of A, B and C.
    accumulator_bytes: Of a partial sum.
    line_bytes: Of a cache line.

  Raises:
    ValueError: no such order, or a size is below 1.
  """
  if order not in LOOP_ORDERS:
    raise ValueError(f"order={order!r}: expected one of {', '.join(LOOP_ORDERS)}")
  for name, value in (
    ("m", m),
    ("k", k),
    ("n", n),
    ("element_bytes", element_bytes),
    ("accumulator_bytes", accumulator_bytes),
    ("line_bytes", line_bytes),
  ):
    at_least(name, value, 1)
  extents = {"i": m, "j": n, "k": k}
  strides = {"A": {"i": k, "k": 1}, "B": {"k": n, "j": 1}, "C": {"i": n, "j": 1}}
  inner = order[-1]
  operands = {}
  for name, stride in strides.items():
    step = stride.get(inner, 0)
    elements = extents[inner] if step else 1
    if step * element_bytes >= line_bytes:
      lines = elements  # each at least a line from the last
    else:
      lines = ((elements - 1) * step * element_bytes) // line_bytes + 1
    operands[name] = OperandAccess(stride_elements=step, elements=elements, lines=lines)
  live = 1
  for loop in order[order.index("k") + 1 :]:
    live *= extents[loop]
  return LoopAccess(
    operands=FrozenMap(operands),
    live_outputs=live,
    live_output_bytes=live * accumulator_bytes,
  )
