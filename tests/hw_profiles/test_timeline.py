"""The event engine, timelines of host and device, pipelines, transfers, persistent kernels."""

import itertools
import random

import pytest

import hw_profiles as hw

MIB = 1024**2


def starts(schedule):
  return {name: interval.start_us for name, interval in schedule.intervals.items()}


def test_a_resource_serves_in_the_order_tasks_become_ready():
  schedule = hw.schedule_tasks(
    [
      hw.Task("late", 1, "engine", after=("gate",)),
      hw.Task("gate", 2),
      hw.Task("first", 5, "engine"),
      hw.Task("second", 1, "engine"),
    ]
  )
  assert starts(schedule) == {"late": 6, "gate": 0, "first": 0, "second": 5}
  assert schedule.intervals["late"].queued_us == 4
  assert (schedule.total_us, schedule.busy_us) == (7, {"engine": 7})


def test_capacity_is_how_many_run_at_once():
  tasks = [hw.Task(str(task), 3, "engine") for task in range(7)]
  for capacity, rounds in ((1, 7), (2, 4), (3, 3), (7, 1), (9, 1)):
    schedule = hw.schedule_tasks(tasks, capacities={"engine": capacity})
    assert schedule.total_us == 3 * rounds


def test_without_resources_a_schedule_is_the_longest_chain():
  rng = random.Random(1)
  for _ in range(50):
    count = rng.randint(1, 9)
    tasks = [
      hw.Task(
        str(task),
        rng.randint(0, 5),
        after=tuple(str(other) for other in range(task) if rng.random() < 0.4),
      )
      for task in range(count)
    ]
    by_name = {task.name: task for task in tasks}

    def longest(name, by_name=by_name):
      return by_name[name].duration_us + max(map(longest, by_name[name].after), default=0)

    rng.shuffle(tasks)
    assert hw.schedule_tasks(tasks).total_us == max(map(longest, by_name))


def test_tasks_that_wait_in_a_circle_are_named():
  tasks = [
    hw.Task("free", 1),
    hw.Task("a", 1, after=("b",)),
    hw.Task("b", 1, after=("free", "c")),
    hw.Task("c", 1, after=("a",)),
    hw.Task("behind", 1, after=("a",)),
  ]
  with pytest.raises(ValueError, match=r"'a' waits for 'b' waits for 'c' waits for 'a'"):
    hw.schedule_tasks(tasks)
  with pytest.raises(ValueError, match=r"Task\('a'\)\.after='x': no such task"):
    hw.schedule_tasks([hw.Task("a", 1, after=("x",))])
  with pytest.raises(ValueError, match=r"two are named 'a'"):
    hw.schedule_tasks([hw.Task("a", 1), hw.Task("a", 2)])
  with pytest.raises(ValueError, match=r"capacities\['engine'\]=0"):
    hw.schedule_tasks([], capacities={"engine": 0})
  assert hw.schedule_tasks([]).total_us == 0


def engine_flow(stage_us, num_slots):
  """The same flow as tasks of the engine."""
  tasks = []
  for block, times in enumerate(stage_us):
    for stage, duration in enumerate(times):
      after = [f"{block}.{stage - 1}"] if stage else []
      if block:
        after.append(f"{block - 1}.{stage}")
      if stage == 0 and num_slots is not None and block >= num_slots:
        after.append(f"{block - num_slots}.{len(times) - 1}")
      tasks.append(hw.Task(f"{block}.{stage}", duration, f"unit{stage}", tuple(after)))
  return hw.schedule_tasks(tasks)


@pytest.mark.parametrize("num_slots", [None, 1, 2, 3, 5])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_a_flow_is_what_the_event_engine_finds(num_slots, num_stages):
  rng = random.Random(num_stages)
  for _ in range(20):
    times = [[rng.randint(0, 6) for _ in range(num_stages)] for _ in range(rng.randint(0, 12))]
    flow, schedule = hw.block_flow(times, num_slots=num_slots), engine_flow(times, num_slots)
    assert flow.total_us == schedule.total_us
    for block, stage in itertools.product(range(len(times)), range(num_stages)):
      interval = schedule.intervals[f"{block}.{stage}"]
      assert (flow.start_us[block][stage], flow.end_us[block][stage]) == (
        interval.start_us,
        interval.end_us,
      )


def test_a_flow_names_what_is_wrong():
  with pytest.raises(ValueError, match=r"stage_us\[1\] has 1 stages, block 0 has 2"):
    hw.block_flow([(1, 2), (1,)])
  with pytest.raises(ValueError, match=r"stage_us\[0\]\[1\]=-1"):
    hw.block_flow([(1, -1)])
  with pytest.raises(ValueError, match=r"stages of a block=0"):
    hw.block_flow([()])
  assert hw.block_flow([]).total_us == 0


@pytest.mark.parametrize("latency", [0, 1, 4, 11])
@pytest.mark.parametrize("num_slots", [1, 2, 3, 4, 9])
def test_the_closed_form_holds_with_a_copy_latency(latency, num_slots):
  for copy, compute, blocks in itertools.product((0, 1, 2, 5), (0, 1, 3, 5), (0, 1, 2, 3, 7, 24)):
    arguments = {
      "copy_us": copy,
      "compute_us": compute,
      "num_slots": num_slots,
      "num_blocks": blocks,
      "copy_latency_us": latency,
    }
    assert hw.pipeline(**arguments).total_us == hw.pipeline_total_us(**arguments)


def test_slots_pay_until_the_slower_unit_never_waits():
  # a block takes 2 + 7 + 1 us, the mover needs 2 us for each: five slots keep it busy
  totals = [
    hw.pipeline_total_us(copy_us=2, compute_us=1, copy_latency_us=7, num_slots=slots, num_blocks=40)
    for slots in range(1, 8)
  ]
  assert totals[0] > totals[1] > totals[2] > totals[3] > totals[4] == totals[5] == totals[6]


def test_more_buffers_are_not_always_faster():
  """The pitfall: "more buffers help" would choose three slots for nothing."""
  steady = [
    hw.pipeline(copy_us=1.29, compute_us=0.28, num_slots=slots, num_blocks=4) for slots in (1, 2, 3)
  ]
  assert [round(run.total_us, 2) for run in steady] == [6.28, 5.44, 5.44]
  assert steady[1].slot_wait_us == 0
  faster_compute = hw.pipeline(copy_us=1.29, compute_us=0.0, num_slots=2, num_blocks=4)
  assert steady[1].total_us - faster_compute.total_us == pytest.approx(0.28)
  smaller_blocks = hw.pipeline(copy_us=0.645, compute_us=0.28, num_slots=2, num_blocks=4)
  assert smaller_blocks.total_us < 0.55 * steady[1].total_us


def test_jitter_is_what_a_third_slot_absorbs():
  jitter = {"copy_us": [1, 1, 1, 5] * 4, "compute_us": [2] * 16, "num_blocks": 16}
  totals = [hw.pipeline(**jitter, num_slots=slots).total_us for slots in (1, 2, 3, 4, 5, 16)]
  assert totals[1] > totals[2]
  steady = [
    hw.pipeline(copy_us=2, compute_us=2, num_blocks=16, num_slots=slots).total_us
    for slots in (2, 3)
  ]
  assert steady[0] == steady[1]


def test_another_slot_never_costs_time_and_no_unit_beats_its_work():
  rng = random.Random(2)
  for _ in range(100):
    count = rng.randint(1, 15)
    copies = [rng.randint(0, 9) for _ in range(count)]
    computes = [rng.randint(0, 9) for _ in range(count)]
    runs = [
      hw.pipeline(copy_us=copies, compute_us=computes, num_slots=slots, num_blocks=count)
      for slots in range(1, count + 1)
    ]
    totals = [run.total_us for run in runs]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] == sum(copies) + sum(computes)
    assert totals[-1] >= max(sum(copies), sum(computes))
    assert runs[-1].slot_wait_us == 0


def test_jitter_needs_a_time_for_each_block():
  with pytest.raises(ValueError, match=r"copy_us has 2 times.*num_blocks=3"):
    hw.pipeline(copy_us=[1, 2], compute_us=1, num_slots=2, num_blocks=3)
  with pytest.raises(ValueError, match=r"compute_us\[1\]=-1"):
    hw.pipeline(copy_us=1, compute_us=[1, -1], num_slots=2, num_blocks=2)


def test_two_blocks_on_an_sm_leave_one_slot_and_the_mover_waits():
  need = {"slot_bytes": 16 * 1024, "wanted_slots": 3, "other_bytes": 32 * 1024}
  alone = hw.slot_budget("rtx_pro_6000", resident_blocks=1, **need)
  pair = hw.slot_budget("rtx_pro_6000", resident_blocks=2, **need)
  crowd = hw.slot_budget("rtx_pro_6000", resident_blocks=4, **need)
  assert (alone.num_slots, alone.budget_bytes) == (3, 99 * 1024)
  assert (pair.num_slots, pair.budget_bytes) == (1, 49 * 1024)
  assert (crowd.num_slots, crowd.fitting_slots) == (0, 0)
  times = {"copy_us": 1.0, "compute_us": 1.5, "num_blocks": 8}
  with_room = hw.pipeline(**times, num_slots=alone.num_slots)
  squeezed = hw.pipeline(**times, num_slots=pair.num_slots)
  assert squeezed.slot_wait_us == pytest.approx(7 * 1.5)
  assert squeezed.total_us > with_room.total_us
  with pytest.raises(ValueError, match=r"resident_blocks=99: an SM of rtx_pro_6000 holds at most"):
    hw.slot_budget("rtx_pro_6000", resident_blocks=99, **need)


@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
def test_a_slot_budget_is_what_residency_allows(blocks):
  budget = hw.slot_budget("h100", resident_blocks=blocks, slot_bytes=1, wanted_slots=0).budget_bytes

  def resident(shared_bytes):
    return hw.residency(
      "h100", threads_per_block=32, registers_per_thread=32, shared_bytes_per_block=shared_bytes
    ).resident_blocks

  assert resident(budget) >= blocks
  if budget < hw.get_profile("h100").max_shared_bytes_per_block:
    assert resident(budget + 1) < blocks


def closed_form(host, device, dependent, segments):
  slower = max(host, device) + dependent
  return host + dependent + (segments - 1) * slower + device


@pytest.mark.parametrize("dependent", [0, 1, 7])
def test_host_and_device_overlap_as_the_closed_form_says(dependent):
  for host, device, segments in itertools.product((0, 5, 20), (0, 5, 20), (1, 2, 9)):
    arguments = {
      "host_us": host,
      "device_us": device,
      "num_segments": segments,
      "dependent_host_us": dependent,
    }
    overlapped = hw.host_device_timeline(**arguments)
    serial = hw.host_device_timeline(**arguments, overlap=False)
    assert overlapped.ready_us == closed_form(host, device, dependent, segments)
    assert serial.ready_us == segments * (host + dependent + device)
    one_ahead = hw.host_device_timeline(**arguments, max_ahead=1)
    assert one_ahead.ready_us == serial.ready_us
    # two in flight already overlap all there is, as two slots do
    assert hw.host_device_timeline(**arguments, max_ahead=2).ready_us == overlapped.ready_us


def test_three_ways_to_measure_one_call():
  operations = {"h2d": 8, "kernel": 20, "d2h": 4}
  call = hw.host_device_timeline(host_us=3, device_us=operations)
  assert (call.submit_us, call.device_us, call.ready_us) == (3, 32, 35)
  assert [interval.start_us for interval in call.device_intervals] == [3, 11, 31]
  assert call.operation_us == operations
  assert call.besides_us("kernel") == 15
  with pytest.raises(ValueError, match=r"operation='gemm': the device runs only h2d, kernel, d2h"):
    call.besides_us("gemm")


def test_small_kernels_leave_the_device_waiting_for_the_host():
  large = hw.host_device_timeline(host_us=5, device_us=50, num_segments=10)
  small = hw.host_device_timeline(host_us=5, device_us=2, num_segments=10)
  assert large.device_idle_us == 0
  assert small.device_idle_us == 9 * 3
  assert small.submit_us == 50 < small.ready_us


def test_a_host_that_needs_the_token_cannot_run_ahead():
  free = hw.host_device_timeline(host_us=20, device_us=20, num_segments=100)
  bound = hw.host_device_timeline(host_us=0, dependent_host_us=20, device_us=20, num_segments=100)
  early = hw.host_device_timeline(host_us=15, dependent_host_us=5, device_us=20, num_segments=100)
  assert (free.ready_us, bound.ready_us) == (2020, 4000)
  assert early.ready_us == 20 + 99 * 25 + 20


def test_timelines_name_the_argument():
  with pytest.raises(ValueError, match=r"device_us\['kernel'\]=-1"):
    hw.host_device_timeline(host_us=1, device_us={"kernel": -1})
  with pytest.raises(ValueError, match=r"max_ahead=0"):
    hw.host_device_timeline(host_us=1, device_us=1, max_ahead=0)
  assert hw.host_device_timeline(host_us=1, device_us=1, num_segments=0).ready_us == 0


def test_splitting_can_beat_fusing():
  three = hw.host_device_timeline(host_us=0, device_us={"a": 38.7, "b": 24.2, "c": 28.2})
  four = hw.host_device_timeline(host_us=0, device_us={"a": 7.6, "b": 18.4, "c": 7.5, "d": 35.7})
  gain = hw.time_change(before_us=three.ready_us, after_us=four.ready_us)
  assert len(four.device_intervals) > len(three.device_intervals)
  assert gain.speedup == pytest.approx(91.1 / 69.2)


@pytest.mark.parametrize("stages", [(5,), (12.8, 1.76), (4, 4), (1, 9, 3)])
@pytest.mark.parametrize("blocks", [1, 2, 8, 13])
def test_a_persistent_kernel_is_one_launch_and_a_flow(stages, blocks):
  result = hw.persistent_pipeline(
    stage_us=stages, num_blocks=blocks, launch_us=5, schedule_us=0.5, notify_us=0.2
  )
  tasks = [stage + 0.7 for stage in stages]
  assert result.separate_us == pytest.approx(5 * len(stages) + blocks * sum(stages))
  assert result.persistent_us == pytest.approx(5 + sum(tasks) + (blocks - 1) * max(tasks))
  assert result.saved_us == pytest.approx(
    result.launches_saved_us + result.hidden_us - result.overhead_us
  )
  assert result.overhead_us == pytest.approx((blocks + len(stages) - 1) * 0.7)


def test_equal_stages_gain_most_and_slots_hold_projections_back():
  def run(first, slots=None):
    return hw.persistent_pipeline(
      stage_us=(first, 16 - first), num_blocks=8, launch_us=5, num_slots=slots
    )

  hidden = [run(first).hidden_us for first in (15, 12, 8)]
  assert hidden == sorted(hidden)
  assert [run(8, slots).persistent_us for slots in (1, 2, 3)] == [5 + 8 * 16, 77, 77]
  assert run(8, 1).tasks.slot_wait_us == 7 * 8


def test_overheads_can_cost_more_than_is_hidden():
  result = hw.persistent_pipeline(
    stage_us=(1, 0.01), num_blocks=100, launch_us=2, schedule_us=0.5, notify_us=0.2
  )
  assert result.saved_us < 0
  assert result.speedup < 1


def test_a_pageable_source_costs_a_host_copy():
  arguments = {"shape": (8192, 4096), "dtype": "bfloat16", "bandwidth_bytes_per_s": 64e9}
  pinned = hw.transfer(**arguments, direction="h2d")
  pageable = hw.transfer(**arguments, direction="h2d", host_copy_bytes_per_s=16e9)
  assert pinned.staging_us == 0
  assert pageable.staging_us == pytest.approx(64 * MIB / 16e9 * 1e6)
  assert pageable.total_us == pageable.staging_us + pinned.copy_us
  assert hw.transfer(**arguments, direction="d2h").copy_us == pinned.copy_us
  # within one memory every byte is read and written
  assert hw.transfer(**arguments, direction="d2d").copy_us == 2 * pinned.copy_us
  assert hw.transfer(**arguments, direction="d2h", latency_us=7).total_us == pinned.copy_us + 7
  with pytest.raises(ValueError, match=r"direction='p2p': expected one of h2d, d2h, d2d"):
    hw.transfer(**arguments, direction="p2p")
  with pytest.raises(ValueError, match=r"host_copy_bytes_per_s=1.*d2d"):
    hw.transfer(**arguments, direction="d2d", host_copy_bytes_per_s=1)


@pytest.mark.parametrize("rows", [8192, 8191, 7])
@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
def test_chunks_move_the_same_bytes_and_start_computing_earlier(rows, chunks):
  arguments = {"dtype": "bfloat16", "bandwidth_bytes_per_s": 64e9}
  whole = hw.transfer(shape=(rows, 4096), direction="h2d", **arguments)
  run = hw.chunked_transfer(
    shape=(rows, 4096), num_chunks=chunks, compute_us=whole.copy_us, **arguments
  )
  assert run.events[-1].copy_end_us == pytest.approx(whole.copy_us)
  assert run.events[0].compute_start_us == pytest.approx(whole.copy_us * -(-rows // chunks) / rows)
  last = run.events[-1]
  assert last.compute_start_us >= last.copy_end_us
  assert run.total_us == last.compute_end_us
  if chunks > 1:
    assert run.total_us < 2 * whole.copy_us
  assert sum(event.compute_end_us - event.compute_start_us for event in run.events) == (
    pytest.approx(whole.copy_us)
  )


def test_chunks_have_an_optimum_once_each_costs_something():
  def total(chunks):
    return hw.chunked_transfer(
      shape=(8192, 4096),
      dtype="bfloat16",
      num_chunks=chunks,
      bandwidth_bytes_per_s=64e9,
      compute_us=1000,
      chunk_overhead_us=10,
    ).total_us

  assert total(8) < total(1)
  assert total(8) < total(1024)
  with pytest.raises(ValueError, match=r"num_chunks=9: expected at most 8"):
    hw.chunked_transfer(
      shape=(8, 1), dtype="int8", num_chunks=9, bandwidth_bytes_per_s=1, compute_us=0
    )


def test_writing_in_the_readers_layout_saves_a_pass_or_not():
  arguments = {"shape": (1024, 12288), "dtype": "bfloat16", "bandwidth_bytes_per_s": 1792e9}
  pass_us = 48 * MIB / 1792e9 * 1e6
  cheap = hw.relayout(**arguments, compute_us=200, direct_compute_us=200 + pass_us - 1)
  dear = hw.relayout(**arguments, compute_us=200, direct_compute_us=200 + pass_us + 1)
  assert cheap.traffic_bytes == 48 * MIB
  assert (cheap.direct_is_faster, dear.direct_is_faster) == (True, False)


def test_stage_times_of_a_share_and_of_the_whole_device():
  block = {"bytes": 32 * 1024, "flops": 2 * 128 * 128 * 64, "dtype": "bfloat16"}
  share = hw.stage_times("h100", **block)
  whole = hw.stage_times("h100", **block, sharing_cores=1)
  assert share.copy_us == pytest.approx(132 * whole.copy_us)
  assert share.slower == "copy"
  # the ratio is the ridge over the intensity
  ridge = hw.roofline("h100", flops=1, bytes=1, dtype="bfloat16").ridge
  assert share.copy_over_compute == pytest.approx(ridge / 64)
  assert hw.stage_times("910b3", **block).bandwidth_bytes_per_s == pytest.approx(
    hw.get_profile("910b3").hbm_bandwidth_bytes_per_s / hw.get_profile("910b3").aic_count
  )
  half = hw.stage_times("h100", **block, compute_utilisation=0.5)
  assert half.compute_us == pytest.approx(2 * share.compute_us)
  with pytest.raises(ValueError, match=r"compute_utilisation=1.5: expected at most 1"):
    hw.stage_times("h100", **block, compute_utilisation=1.5)


def test_a_larger_tile_may_lose_a_quarter_of_its_bandwidth():
  """Exercise: 64 x 128 instead of 64 x 64 tiles, and the bandwidth that still pays."""
  sizes = {"m": 1024, "k": 4096, "n": 12288, "block_k": 32, "in_dtype": "bfloat16"}
  square = hw.matmul_traffic(**sizes, block_m=64, block_n=64)
  wide = hw.matmul_traffic(**sizes, block_m=64, block_n=128)
  assert (wide.a_read_bytes / MIB, wide.b_read_bytes / MIB) == (768, 1536)
  assert (wide.total_bytes / MIB, wide.working_set_bytes / 1024) == (2328, 44)
  needed = wide.total_bytes / square.total_bytes
  assert needed == pytest.approx(0.752, abs=5e-4)

  def time_us(traffic, share):
    return hw.stage_times(
      "rtx_pro_6000",
      bytes=traffic.total_bytes,
      flops=0,
      dtype="bfloat16",
      sharing_cores=1,
      bandwidth_utilisation=share,
    ).copy_us

  assert time_us(wide, needed * 1.001) < time_us(square, 1.0) < time_us(wide, needed * 0.999)
