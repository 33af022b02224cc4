"""Copies between host and device, and within the device."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, get_args

from hw_profiles import dtypes
from hw_profiles.arguments import at_least, collection, not_negative, positive
from hw_profiles.cost.pipeline import Pipeline, pipeline

Direction = Literal["h2d", "d2h", "d2d"]


@dataclasses.dataclass(frozen=True)
class Transfer:
  """What one copy moves and takes.

  Attributes:
    bytes: Size of the array.
    traffic_bytes: Bytes at the interface whose bandwidth counts: the array once
      over a link; read and written, so twice, within one memory.
    staging_us: The host's own copy between pageable and pinned memory; 0 without.
    copy_us: The copy engine's part.
    total_us: Both, one after the other.
  """

  bytes: int
  traffic_bytes: int
  staging_us: float
  copy_us: float
  total_us: float


def array_bytes(shape: Sequence[int], dtype: str) -> int:
  """Bytes of an array: the product of its sizes times those of an element.

  Raises:
    ValueError: a size below 0, or a dtype the models do not know.
  """
  collection("shape", shape)
  for axis, size in enumerate(shape):
    at_least(f"shape[{axis}]", size, 0)
  return math.prod(shape) * dtypes.size_bytes(dtype)


def transfer(
  *,
  shape: Sequence[int],
  dtype: str,
  direction: Direction,
  bandwidth_bytes_per_s: float,
  latency_us: float = 0.0,
  host_copy_bytes_per_s: float | None = None,
) -> Transfer:
  """time = latency + bytes / bandwidth; within one memory 2·bytes / bandwidth.

  Example: [8192, 4096] bfloat16 is 64 MiB: 1.05 ms over a link of 64 GB/s each
  way. [256, 4096] is 2 MiB: 4 MiB of traffic, 2.34 us at 1792 GB/s.

  Args:
    shape: Of the array.
    dtype: Of the array.
    direction: "h2d" and "d2h" cross the link, "d2d" stays in device memory.
    bandwidth_bytes_per_s: Of the link in that direction, or of the device memory,
      which reads and writes share.
    latency_us: Start-up of the copy.
    host_copy_bytes_per_s: Given where the host's memory is pageable, or is copied
      to a new pinned buffer for each batch: bandwidth, in bytes copied a second,
      of that copy, which comes before (h2d) or after (d2h). None: the host uses
      a pinned buffer directly, and reuses it.

  Raises:
    ValueError: an argument is out of range, or a host copy for "d2d".
  """
  if direction not in get_args(Direction):
    raise ValueError(f"direction={direction!r}: expected one of {', '.join(get_args(Direction))}")
  positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
  not_negative("latency_us", latency_us)
  size = array_bytes(shape, dtype)
  staging_us = 0.0
  if host_copy_bytes_per_s is not None:
    positive("host_copy_bytes_per_s", host_copy_bytes_per_s)
    if direction == "d2d":
      raise ValueError(
        f"host_copy_bytes_per_s={host_copy_bytes_per_s}: a d2d copy has no host memory;"
        " expected None"
      )
    staging_us = size / host_copy_bytes_per_s * 1e6
  traffic = 2 * size if direction == "d2d" else size
  copy_us = latency_us + traffic / bandwidth_bytes_per_s * 1e6
  return Transfer(
    bytes=size,
    traffic_bytes=traffic,
    staging_us=staging_us,
    copy_us=copy_us,
    total_us=staging_us + copy_us,
  )


def _chunk_rows(rows: int, num_chunks: int) -> list[int]:
  """Rows of each chunk: as equal as whole rows allow, larger chunks first."""
  share, rest = divmod(rows, num_chunks)
  return [share + (chunk < rest) for chunk in range(num_chunks)]


def chunked_transfer(
  *,
  shape: Sequence[int],
  dtype: str,
  num_chunks: int,
  bandwidth_bytes_per_s: float,
  compute_us: float,
  num_slots: int | None = None,
  chunk_overhead_us: float = 0.0,
) -> Pipeline:
  """Cuts an input into chunks of rows, so that computing starts before all has come.

  The link moves the same bytes, so the last chunk arrives no earlier; the first
  does. The rest is `pipeline` with the copy and compute time of each chunk.

  Example: 64 MiB over 64 GB/s in two chunks: the first half is there after
  0.52 ms of 1.05 ms.

  Args:
    shape: Of the input; its first axis is cut, into parts that differ by one row
      at most.
    dtype: Of the input.
    num_chunks: At least 1, and at most the rows.
    bandwidth_bytes_per_s: Of the link.
    compute_us: Computing all of the input, shared among chunks by their rows.
    num_slots: Device buffers, of a chunk each; None: one for each chunk.
    chunk_overhead_us: Start-up of each copy.

  Raises:
    ValueError: an argument is out of range.
  """
  collection("shape", shape)
  at_least("axes of shape", len(shape), 1)
  size = array_bytes(shape, dtype)
  rows = shape[0]
  at_least("shape[0]", rows, 1)
  at_least("num_chunks", num_chunks, 1)
  if num_chunks > rows:
    raise ValueError(
      f"num_chunks={num_chunks}: expected at most {rows}, one for each row of shape[0]"
    )
  positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
  not_negative("compute_us", compute_us)
  not_negative("chunk_overhead_us", chunk_overhead_us)
  chunks = _chunk_rows(rows, num_chunks)
  row_us = size / rows / bandwidth_bytes_per_s * 1e6
  return pipeline(
    copy_us=[chunk_overhead_us + chunk * row_us for chunk in chunks],
    compute_us=[compute_us * chunk / rows for chunk in chunks],
    num_slots=num_chunks if num_slots is None else num_slots,
    num_blocks=num_chunks,
  )


@dataclasses.dataclass(frozen=True)
class Relayout:
  """A result rearranged for its reader, apart or as it is written.

  Attributes:
    traffic_bytes: What the separate rearrangement reads and writes.
    relayout_us: Its time.
    separate_us: Computing, then rearranging.
    direct_us: Computing and writing in the reader's layout at once.
    direct_is_faster: Whether writing directly takes less in all.
  """

  traffic_bytes: int
  relayout_us: float
  separate_us: float
  direct_us: float
  direct_is_faster: bool


def relayout(
  *,
  shape: Sequence[int],
  dtype: str,
  bandwidth_bytes_per_s: float,
  compute_us: float,
  direct_compute_us: float,
) -> Relayout:
  """separate = compute + 2·bytes / bandwidth, against direct_compute.

  Writing in the reader's layout saves the extra pass, but may write or compute
  less well; which is faster depends on both totals.

  Args:
    shape: Of the result.
    dtype: Of the result.
    bandwidth_bytes_per_s: Of the memory, which reads and writes share.
    compute_us: Computing with stores in the producer's own order.
    direct_compute_us: Computing with stores in the reader's order.

  Raises:
    ValueError: an argument is out of range.
  """
  not_negative("compute_us", compute_us)
  not_negative("direct_compute_us", direct_compute_us)
  copied = transfer(
    shape=shape, dtype=dtype, direction="d2d", bandwidth_bytes_per_s=bandwidth_bytes_per_s
  )
  separate_us = compute_us + copied.copy_us
  return Relayout(
    traffic_bytes=copied.traffic_bytes,
    relayout_us=copied.copy_us,
    separate_us=separate_us,
    direct_us=direct_compute_us,
    direct_is_faster=direct_compute_us < separate_us,
  )
