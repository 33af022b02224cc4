"""Whether a problem has room in this machine's memory, before anything is drawn for it."""

import math
import os

from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.workload import Workload

# The reference converts its arguments to float64 slice by slice: it takes at
# most this beside them.
_CHECK_BYTES = 2**29
_FLOAT32_BYTES = 4
_FLOAT64_BYTES = 8


def needed_bytes(workload: Workload, *, check: bool) -> int:
  """The least host memory that a whole problem takes.

  Operands and result; the float32 draw of the largest operand, which is there
  while that is rounded; float64 copies, up to the reference's slices.

  Args:
    workload: The problem.
    check: Whether the result is held against float64.
  """
  op = workload.op
  shapes = op.operand_shapes(workload.shape, workload.options)
  elements = [math.prod(shape) for shape in shapes if shape is not None]
  once_through = op.once_through_bytes(workload.shape, workload.dtype, workload.options)
  drawn = _FLOAT32_BYTES * max(elements, default=0)
  copies = min(_CHECK_BYTES, _FLOAT64_BYTES * sum(elements)) if check else 0
  return int(once_through) + max(drawn, copies)


def installed_bytes() -> int | None:
  """The machine's memory; None where the system does not say."""
  try:
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
  except (AttributeError, ValueError, OSError):
    return None
  return pages * page_bytes if pages > 0 and page_bytes > 0 else None


def refuse_too_large(workload: Workload, *, check: bool) -> None:
  """Refuses a problem that takes more than the machine's memory.

  Raises:
    UsageError: with the shape and the bytes.
  """
  needed, installed = needed_bytes(workload, check=check), installed_bytes()
  if installed is not None and needed > installed:
    raise UsageError(
      f"--shape={workload.shape}: running {workload.op.name} in {workload.dtype} takes at least "
      f"{needed} B ({needed / 2**30:,.1f} GiB) for operands, copies and result, this machine has "
      f"{installed} B ({installed / 2**30:,.1f} GiB); expected a smaller shape, or --task=plan, "
      "which runs nothing"
    )
