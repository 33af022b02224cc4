"""A warp reading its operands from shared memory for one step of K."""

from typing import Literal

from hw_profiles.arguments import at_least, instance
from hw_profiles.capacity.residency import LANES_PER_WARP
from hw_profiles.sm_tiling.banks import BankConflicts, bank_conflicts
from hw_profiles.sm_tiling.lane_maps import WarpTiling
from hw_profiles.sm_tiling.shared_layout import PitchedLayout, SharedLayout


def fragment_loads(
  tiling: WarpTiling,
  *,
  operand: Literal["A", "B"],
  width_bytes: int = 16,
  layout: SharedLayout | None = None,
  k_first: bool = True,
  step: int = 0,
  warp: int = 0,
) -> tuple[BankConflicts, ...]:
  """The loads with which a warp fetches its part of A or B for one step of K.

  Every lane reads the thread_m rows of A (or thread_n columns of B) that its
  outputs need, `width_bytes` a load; lanes of one row of the map read the same
  of A, lanes of one column the same of B.

  Transactions of 8 x 8 outputs a thread and float4 loads, over one load of
  each operand; an 8 x 8 step issues two of each, so it takes twice as many:

      row first 4 x 8, contiguous patches     A 2 + B 8 = 10
      column first 4 x 8, contiguous patches  A 4 + B 2 = 6
      row first 4 x 8, runs of 4              A 2 + B 4 = 6
      z order 4 x 8, runs of 4                A 2 + B 2 = 4

  So 4 x 8 lanes avoid conflicts on both sides only column first (or as 8 x 4
  row first); row first, lanes 0 and 4 read B a whole layer of banks apart.

  Args:
    tiling: Lanes and their outputs.
    operand: "A" or "B".
    width_bytes: Of one lane's load; its elements must lie side by side.
    layout: The tile in shared memory; None: float32 rows of K, unpadded.
    k_first: Whether `layout` is [K, M] (A stored transposed) or [K, N];
      otherwise [M, K] or [N, K].
    step: Row of K.
    warp: Which warp.

  Returns:
    One entry a load, in order of the outputs.

  Raises:
    ValueError: an unknown operand, a width that does not divide what a thread
      reads, elements of one load that are not contiguous, or an element that
      the layout does not have.
  """
  instance("tiling", tiling, WarpTiling)
  if operand not in ("A", "B"):
    raise ValueError(f"operand={operand!r}: expected 'A' or 'B'")
  at_least("step", step, 0)
  at_least("warp", warp, 0)
  if warp >= tiling.warps:
    raise ValueError(f"warp={warp}: expected at most {tiling.warps - 1}")
  axis = 0 if operand == "A" else 1
  if layout is None:
    layout = PitchedLayout(rows=step + 1, columns=tiling.tile[axis])
  outputs = (tiling.thread_m, tiling.thread_n)[axis]
  per_load, remainder = divmod(width_bytes, layout.element_bytes)
  if remainder or per_load < 1 or outputs % per_load:
    raise ValueError(
      f"width_bytes={width_bytes}: expected a divisor of the {outputs * layout.element_bytes} B"
      f" that a thread reads, in whole elements of {layout.element_bytes} B"
    )

  def address(thread: int, index: int) -> int:
    place = tiling.output(thread, index, 0) if axis == 0 else tiling.output(thread, 0, index)
    coordinate = place[axis]
    return layout.address(step, coordinate) if k_first else layout.address(coordinate, step)

  loads = []
  for first in range(0, outputs, per_load):
    addresses = []
    for thread in range(warp * LANES_PER_WARP, (warp + 1) * LANES_PER_WARP):
      start = address(thread, first)
      for index in range(1, per_load):
        if address(thread, first + index) != start + index * layout.element_bytes:
          raise ValueError(
            f"width_bytes={width_bytes}: elements {first} and {first + index} of thread {thread}"
            f" do not lie side by side; {layout.element_bytes} works with any layout"
          )
      addresses.append(start)
    loads.append(bank_conflicts(addresses, width_bytes=width_bytes))
  return tuple(loads)


def step_transactions(tiling: WarpTiling, *, width_bytes: int = 16) -> int:
  """Shared-memory transactions of a warp for one step of K, A and B together.

  Both operands lie [K, M] and [K, N], unpadded float32. 20, 12, 12 and 8 for
  the four maps of `fragment_loads` with 8 x 8 outputs a thread.

  Raises:
    ValueError: as `fragment_loads`.
  """
  instance("tiling", tiling, WarpTiling)
  return sum(
    load.transactions
    for load in (
      *fragment_loads(tiling, operand="A", width_bytes=width_bytes),
      *fragment_loads(tiling, operand="B", width_bytes=width_bytes),
    )
  )
