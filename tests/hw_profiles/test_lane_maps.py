"""Lanes, cooperative loads and fragment loads: bijections, tails, transactions."""

import dataclasses
import itertools

import pytest

import hw_profiles as hw

LANE_MAPS = [
  hw.LaneMap(rows=rows, columns=32 // rows, order=order)
  for rows in (1, 2, 4, 8, 16, 32)
  for order in ("row_first", "column_first", "z_order")
  if not (order == "z_order" and rows == 1)
]


@pytest.mark.parametrize("lanes", LANE_MAPS, ids=repr)
def test_every_lane_has_its_own_place(lanes):
  places = {lanes.place(lane) for lane in range(32)}
  assert places == set(itertools.product(range(lanes.rows), range(lanes.columns)))


def test_places_of_the_first_quarter_warp():
  z_order = hw.LaneMap(rows=4, columns=8, order="z_order")
  assert [z_order.place(lane) for lane in range(8)] == [
    (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)
  ]  # fmt: skip
  for lane in range(32):
    assert z_order.place(lane)[1] == z_order.place(lane ^ 1)[1]
    assert z_order.place(lane)[0] == z_order.place(lane ^ 2)[0]


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"rows": 4, "columns": 4}, "rows=4, columns=4: a warp has 32 lanes; expected one of 1x32"),
    ({"rows": 1, "columns": 32, "order": "z_order"}, "rows=1: z_order"),
    ({"rows": 4, "columns": 8, "order": "zigzag"}, "order='zigzag': expected one of row_first"),
  ],
)
def test_lane_maps_that_are_none(arguments, message):
  with pytest.raises(ValueError, match=message):
    hw.LaneMap(**arguments)


@pytest.mark.parametrize("lanes", LANE_MAPS, ids=repr)
@pytest.mark.parametrize("runs", [(8, 8), (4, 4), (1, 1), (2, 8)])
@pytest.mark.parametrize("warps", [(1, 1), (4, 2), (3, 5)])
def test_warp_tilings_are_bijections(lanes, runs, warps):
  tiling = hw.WarpTiling(
    lanes=lanes,
    thread_m=8,
    thread_n=8,
    warp_rows=warps[0],
    warp_columns=warps[1],
    run_m=runs[0],
    run_n=runs[1],
  )
  rows, columns = tiling.tile
  result = hw.coverage(tiling.outputs(), rows=rows, columns=columns)
  assert result.is_bijection
  assert result.covered == tiling.threads * 64


@pytest.mark.parametrize(("thread_m", "run_m"), [(8, 1), (8, 4), (6, 3), (7, 7)])
def test_thread_tilings_are_bijections(thread_m, run_m):
  tiling = hw.ThreadTiling(
    thread_rows=5, thread_columns=7, thread_m=thread_m, thread_n=4, run_m=run_m, run_n=2
  )
  rows, columns = tiling.tile
  assert hw.coverage(tiling.outputs(), rows=rows, columns=columns).is_bijection
  with pytest.raises(ValueError, match=r"run_m=9: expected a divisor"):
    dataclasses.replace(tiling, run_m=9)


@pytest.mark.parametrize("place", [(64, 0, 0), (-1, 0, 0), (0, 8, 0), (0, 0, 4)])
def test_outputs_that_no_thread_has(place):
  lanes = hw.LaneMap(rows=4, columns=8)
  for tiling in (
    hw.WarpTiling(lanes=lanes, thread_m=8, thread_n=4, warp_columns=2),
    hw.ThreadTiling(thread_rows=8, thread_columns=8, thread_m=8, thread_n=4),
  ):
    with pytest.raises(ValueError, match=r"(thread|i|j)=-?\d+: expected"):
      tiling.output(*place)


def test_coverage_tells_faults_apart():
  result = hw.coverage([(0, 0), (0, 0), (5, 5)], rows=2, columns=2)
  assert result == hw.Coverage(covered=1, missed=3, repeated=1, outside=1)
  assert not result.is_bijection


@pytest.mark.parametrize(
  "load",
  [
    hw.CooperativeLoad(tile_rows=128, tile_columns=8, threads=256, threads_per_row=8),
    hw.CooperativeLoad(tile_rows=128, tile_columns=8, threads=256, threads_per_row=2, vector=4),
    hw.CooperativeLoad(tile_rows=8, tile_columns=128, threads=256, threads_per_row=32),
    # nothing divides: tail rounds leave threads without work
    hw.CooperativeLoad(tile_rows=100, tile_columns=7, threads=96, threads_per_row=4),
    hw.CooperativeLoad(tile_rows=3, tile_columns=130, threads=64, threads_per_row=32, vector=2),
    hw.CooperativeLoad(tile_rows=1, tile_columns=1, threads=32, threads_per_row=32),
  ],
  ids=repr,
)
def test_cooperative_loads_fetch_each_element_once(load):
  result = hw.coverage(load.elements(), rows=load.tile_rows, columns=load.tile_columns)
  assert result.is_bijection


def test_idle_lanes_of_a_tail_touch_no_sector():
  load = hw.CooperativeLoad(tile_rows=5, tile_columns=8, threads=64, threads_per_row=8)
  assert load.global_sectors(pitch_bytes=4096).sectors == 4
  # warp 1 has rows 4 to 7, of which one exists
  assert load.global_sectors(pitch_bytes=4096, warp=1).sectors == 1
  with pytest.raises(ValueError, match="warp=2: expected at most 1"):
    load.global_sectors(pitch_bytes=4096, warp=2)
  with pytest.raises(ValueError, match="load_round=1: expected at most 0"):
    load.global_sectors(pitch_bytes=4096, load_round=1)


def test_vectors_have_to_fit_rows():
  with pytest.raises(ValueError, match="vector=4: expected a divisor of tile_columns=6"):
    hw.CooperativeLoad(tile_rows=4, tile_columns=6, threads=32, threads_per_row=2, vector=4)
  with pytest.raises(ValueError, match="threads_per_row=3: expected a divisor of threads=32"):
    hw.CooperativeLoad(tile_rows=4, tile_columns=6, threads=32, threads_per_row=3)


def warp_of(order="row_first", rows=4, run=8, outputs=8):
  return hw.WarpTiling(
    lanes=hw.LaneMap(rows=rows, columns=32 // rows, order=order),
    thread_m=outputs,
    thread_n=outputs,
    run_m=run,
    run_n=run,
  )


def test_a_step_of_eight_by_eight_takes_two_loads_of_each_operand():
  maps = [warp_of(), warp_of("column_first"), warp_of(run=4), warp_of("z_order", run=4)]
  assert [hw.step_transactions(tiling) for tiling in maps] == [20, 12, 12, 8]


def test_four_by_eight_is_free_of_conflicts_both_ways_only_column_first():
  def conflicts(tiling):
    return {
      operand: sum(load.conflicts for load in hw.fragment_loads(tiling, operand=operand))
      for operand in ("A", "B")
    }

  assert conflicts(warp_of("column_first")) == conflicts(warp_of(rows=8)) == {"A": 0, "B": 0}
  row_first = conflicts(warp_of())
  assert row_first["A"] == 0
  assert row_first["B"] > 0


def test_warps_read_alike():
  tiling = dataclasses.replace(warp_of("z_order", run=4), warp_rows=2, warp_columns=3)
  for operand in ("A", "B"):
    counts = {
      tuple(load.transactions for load in hw.fragment_loads(tiling, operand=operand, warp=warp))
      for warp in range(tiling.warps)
    }
    assert len(counts) == 1


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"operand": "C"}, "operand='C': expected 'A' or 'B'"),
    ({"operand": "A", "width_bytes": 12}, "width_bytes=12: expected a divisor of the 32 B"),
    ({"operand": "A", "warp": 1}, "warp=1: expected at most 0"),
    (
      {"operand": "A", "layout": hw.PitchedLayout(rows=32, columns=8), "k_first": False},
      "elements 0 and 1 of thread 0 do not lie side by side; 4 works",
    ),
  ],
)
def test_fragment_loads_refuse(arguments, message):
  with pytest.raises(ValueError, match=message):
    hw.fragment_loads(warp_of(), **arguments)


def test_runs_of_two_are_too_short_for_float4():
  with pytest.raises(ValueError, match="do not lie side by side"):
    hw.fragment_loads(warp_of(run=2), operand="A")
  assert len(hw.fragment_loads(warp_of(run=2), operand="A", width_bytes=8)) == 4


@pytest.mark.parametrize("layout", [{"group_columns": 4}, {"group_columns": 8}])
def test_swizzled_operands_still_load_as_float4(layout):
  swizzled = hw.XorLayout(rows=8, columns=32, **layout)
  for step in range(8):
    loads = hw.fragment_loads(warp_of(), operand="A", layout=swizzled, step=step)
    assert sum(load.transactions for load in loads) == 4
