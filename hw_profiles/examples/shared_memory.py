"""Shared memory: banks, transactions of vector loads, padded and permuted layouts."""

from typing import Literal

import hw_profiles as hw
from hw_profiles.examples.computed import Computed, Inputs, change, over
from hw_profiles.examples.sm_tiling import load_a

_FLOAT = 4


_LANE_ORDERS: dict[str, Literal["row_first", "column_first", "z_order"]] = {
  "row": "row_first",
  "col": "column_first",
  "z": "z_order",
}


def _lane_map(name: str) -> hw.LaneMap:
  """ "row4x8", "col4x8", "z4x8", ..."""
  order = name.rstrip("0123456789x")
  rows, columns = name.removeprefix(order).split("x")
  return hw.LaneMap(rows=int(rows), columns=int(columns), order=_LANE_ORDERS[order])


def _one_warp(inputs: Inputs) -> hw.WarpTiling:
  """A warp of 8 x 8 outputs a lane; the lanes' distance is the run."""
  stride = inputs["stride"]
  return hw.WarpTiling(
    lanes=_lane_map(inputs["layout"]), thread_m=8, thread_n=8, run_m=stride, run_n=stride
  )


def _vector_load(inputs: Inputs) -> hw.BankConflicts:
  """The first float4 load of one operand."""
  return hw.fragment_loads(_one_warp(inputs), operand=inputs["tile"])[0]


def _lds128(inputs: Inputs) -> int:
  tiles = ("A", "B") if inputs["tile"] == "both" else (inputs["tile"],)
  return sum(_vector_load({**inputs, "tile": tile}).transactions for tile in tiles)


def _merge(inputs: Inputs) -> str:
  return "".join(_vector_load(inputs).merge_rules) or "none"


def _distinct_in_first_quarter(inputs: Inputs) -> int:
  return _vector_load(inputs).per_quarter_warp[0].distinct_addresses


def _untransposed_a(inputs: Inputs) -> int:
  tiling = hw.WarpTiling(lanes=_lane_map(inputs["layout"]), thread_m=inputs["TM"], thread_n=8)
  loads = hw.fragment_loads(
    tiling,
    operand="A",
    width_bytes=_FLOAT,
    layout=hw.PitchedLayout(rows=tiling.tile[0], columns=inputs["BK"]),
    k_first=False,
  )
  return max(load.ways for load in loads)


def _transposing_store(inputs: Inputs) -> int:
  load = load_a(inputs, vector={"scalar": 1, "float4": 4}[inputs["pattern"]])
  size = {"rows": load.tile_columns, "columns": load.tile_rows}
  layout = (
    hw.XorLayout(**size, group_columns=4)
    if inputs.get("xor")
    else hw.PitchedLayout(**size, pad_columns=inputs.get("pad", 0))
  )
  return max(store.ways for store in load.transposed_store(layout))


def _row_alignment(inputs: Inputs) -> int:
  layout = hw.PitchedLayout(rows=8, columns=inputs["BM"], pad_columns=inputs["pad"])
  assert layout.allows_vectors(16) == (layout.pitch_bytes % 16 == 0)
  return layout.pitch_bytes % 16


def _consecutive(inputs: Inputs) -> int:
  width = inputs["bytes_per_thread"]
  return hw.bank_conflicts(range(0, 32 * width, width), width_bytes=width).transactions


def _step(layout: str, run: int, loads: int = 2) -> int:
  """Of a step whose threads take `loads` float4s of each operand."""
  return hw.step_transactions(
    hw.WarpTiling(
      lanes=_lane_map(layout), thread_m=4 * loads, thread_n=4 * loads, run_m=run, run_n=run
    )
  )


def _scratch(inputs: Inputs) -> hw.XorLayout | hw.PitchedLayout:
  """The second text's 32 x 32 float32 tile, at a pitch of r words."""
  pitch = inputs.get("s", inputs.get("stride", 32))
  rows = inputs.get("rows", inputs.get("r", 32))
  if inputs.get("xor"):
    return hw.XorLayout(rows=rows, columns=pitch)
  return _padded(pitch, rows)


def _padded(pitch: int, rows: int = 32) -> hw.PitchedLayout:
  return hw.PitchedLayout(rows=rows, columns=32, pad_columns=pitch - 32)


def _column_cycles(inputs: Inputs) -> int:
  addresses = _scratch(inputs).column_addresses(inputs.get("col", 0))
  return hw.bank_conflicts(addresses, width_bytes=_FLOAT).transactions


def _row_cycles(inputs: Inputs) -> int:
  addresses = _scratch({"rows": inputs["rows"]}).row_addresses(0)
  assert addresses[1] - addresses[0] == _FLOAT * inputs["stride"]
  return hw.bank_conflicts(addresses, width_bytes=_FLOAT).transactions


COMPUTED: Computed = {
  "s000.bank.byte_to_bank": lambda i: hw.shared_bank(i["byte"]),
  "s000.bank.transactions_float": _consecutive,
  "s000.bank.transactions_float2": _consecutive,
  "s000.bank.transactions_float4": _consecutive,
  "s000.lds128.rowfirst4x8_stride8.A": _lds128,
  "s000.lds128.rowfirst4x8_stride8.B": _lds128,
  "s000.lds128.rowfirst4x8_stride8.total": _lds128,
  "s000.lds128.rowfirst4x8_stride8.A_merge": _merge,
  "s000.lds128.rowfirst4x8_stride8.B_merge": _merge,
  "s000.lds128.rowfirst4x8_stride8.A_qw_unique": _distinct_in_first_quarter,
  "s000.lds128.rowfirst4x8_stride8.B_qw_unique": _distinct_in_first_quarter,
  "s000.lds128.colfirst4x8_stride8.A": _lds128,
  "s000.lds128.colfirst4x8_stride8.B": _lds128,
  "s000.lds128.colfirst4x8_stride8.total": _lds128,
  "s000.lds128.colfirst4x8_stride8.A_merge": _merge,
  "s000.lds128.colfirst4x8_stride8.B_merge": _merge,
  "s000.lds128.colfirst4x8_stride8.A_qw_unique": _distinct_in_first_quarter,
  "s000.lds128.colfirst4x8_stride8.B_qw_unique": _distinct_in_first_quarter,
  "s000.lds128.subblock4x8_stride4.A": _lds128,
  "s000.lds128.subblock4x8_stride4.B": _lds128,
  "s000.lds128.subblock4x8_stride4.total": _lds128,
  "s000.lds128.subblock4x8_stride4.A_merge": _merge,
  "s000.lds128.subblock4x8_stride4.B_merge": _merge,
  "s000.lds128.subblock4x8_stride4.A_qw_unique": _distinct_in_first_quarter,
  "s000.lds128.subblock4x8_stride4.B_qw_unique": _distinct_in_first_quarter,
  "s000.lds128.zorder_stride4.A": _lds128,
  "s000.lds128.zorder_stride4.B": _lds128,
  "s000.lds128.zorder_stride4.total": _lds128,
  "s000.lds128.zorder_stride4.A_merge": _merge,
  "s000.lds128.zorder_stride4.B_merge": _merge,
  "s000.lds128.zorder_stride4.A_qw_unique": _distinct_in_first_quarter,
  "s000.lds128.zorder_stride4.B_qw_unique": _distinct_in_first_quarter,
  "s000.lds128.zorder_stride8.total": _lds128,
  "s000.lds128.colfirst4x8_stride4.total": _lds128,
  "s000.lds128.row2x16_stride8.total": _lds128,
  "s000.lds128.row1x32_stride8.total": _lds128,
  "s000.lds128.row8x4_stride8.total": _lds128,
  "s000.lds128.reduction": lambda i: change(i).saved_fraction,
  "s000.lds128.per_pstep_rowfirst": lambda i: _step("row4x8", 8, i["loads"]),
  "s000.bank.untransposedA_2x16": _untransposed_a,
  "s000.bank.untransposedA_4x8": _untransposed_a,
  "s000.bank.untransposedA_8x4": _untransposed_a,
  "s000.bank.untransposedA_1x32": _untransposed_a,
  "s000.bank.store_scalar_nopad": _transposing_store,
  "s000.bank.store_scalar_pad4": _transposing_store,
  "s000.bank.store_scalar_xor": _transposing_store,
  "s000.bank.store_float4_nopad": _transposing_store,
  "s000.bank.store_float4_pad4": _transposing_store,
  "s000.bank.store_float4_xor": _transposing_store,
  "s000.bank.pad4_row_alignment": _row_alignment,
  "s000.bank.pad1_row_alignment": _row_alignment,
  "s004.bank32.row": _row_cycles,
  "s004.bank32.col": _column_cycles,
  "s004.bank32.col_pad": _column_cycles,
  "s004.bank32.col_xor_c0": _column_cycles,
  "s004.bank32.col_xor_c7": _column_cycles,
  "s004.bank32.col_xor_c31": _column_cycles,
  "s004.bank32.bytes": lambda i: _scratch(i).size_bytes,
  "s004.bank32.bytes_pad": lambda i: _scratch(i).size_bytes,
  "s004.bank32.overhead": lambda i: over(i) - 1,
}
