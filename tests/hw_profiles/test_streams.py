"""Streams, events and buffers: what a missing event does, and who is named for it."""

import random

import pytest

import hw_profiles as hw

COPY, COMPUTE, BACK = 8.0, 20.0, 4.0


def batches(count, *, slots=2, omit=()):
  """Batches through pinned buffers and `slots` device buffers, on three streams.

  `omit` leaves out the event that guards one of the four buffers, or the waits
  for data.
  """
  program = []

  def order(kind, event, stream, operation):
    if kind not in omit:
      program.append(operation(event, stream) if stream else operation(event))

  for batch in range(count):
    slot = batch % slots
    again = batch >= slots
    if again:
      order("host_source", f"copied[{slot}]", None, hw.HostWait)
    program.append(hw.HostWork(f"prepare[{batch}]", 1.0, writes=(f"host_in[{slot}]",)))
    if again:
      order("device_input", f"used[{slot}]", "copy", hw.Wait)
    program.append(
      hw.Launch(
        f"h2d[{batch}]",
        COPY,
        reads=(f"host_in[{slot}]",),
        writes=(f"device_in[{slot}]",),
        stream="copy",
        resource="h2d",
      )
    )
    program.append(hw.Record(f"copied[{slot}]", "copy"))
    order("input_ready", f"copied[{slot}]", "compute", hw.Wait)
    if again:
      order("device_result", f"returned[{slot}]", "compute", hw.Wait)
    program.append(
      hw.Launch(
        f"kernel[{batch}]",
        COMPUTE,
        reads=(f"device_in[{slot}]",),
        writes=(f"device_out[{slot}]",),
        stream="compute",
        resource="compute",
      )
    )
    program.append(hw.Record(f"used[{slot}]", "compute"))
    order("result_ready", f"used[{slot}]", "back", hw.Wait)
    program.append(
      hw.Launch(
        f"d2h[{batch}]",
        BACK,
        reads=(f"device_out[{slot}]",),
        writes=(f"host_out[{slot}]",),
        stream="back",
        resource="d2h",
      )
    )
    program.append(hw.Record(f"returned[{slot}]", "back"))
    if batch + 1 >= slots:
      # the host looks at a result only once others are under way
      done = batch + 1 - slots
      order("host_result", f"returned[{done % slots}]", None, hw.HostWait)
      program.append(hw.HostWork(f"use[{done}]", 1.0, reads=(f"host_out[{done % slots}]",)))
  return program


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_complete_program_has_no_finding(count, slots):
  timeline = hw.simulate_streams(batches(count, slots=slots))
  assert timeline.findings == ()
  assert timeline.unfinished == {}
  assert timeline.busy_us == {"h2d": count * COPY, "compute": count * COMPUTE, "d2h": count * BACK}


def test_two_streams_and_two_events_are_the_closed_form_of_the_pipeline():
  for count in range(1, 9):
    program = []
    for block in range(count):
      slot = block % 2
      if block >= 2:
        program.append(hw.Wait(f"used[{slot}]", "copy"))
      program += [
        hw.Launch(f"copy[{block}]", 1.29, writes=(f"slot[{slot}]",), stream="copy"),
        hw.Record(f"copied[{slot}]", "copy"),
        hw.Wait(f"copied[{slot}]", "compute"),
        hw.Launch(f"compute[{block}]", 0.28, reads=(f"slot[{slot}]",), stream="compute"),
        hw.Record(f"used[{slot}]", "compute"),
      ]
    timeline = hw.simulate_streams(program)
    assert timeline.findings == ()
    assert timeline.total_us == pytest.approx(
      hw.pipeline_total_us(copy_us=1.29, compute_us=0.28, num_slots=2, num_blocks=count)
    )


@pytest.mark.parametrize(
  ("omitted", "kind", "stream", "operation", "buffer", "earlier"),
  [
    ("host_source", "overwritten_in_use", "host", "prepare[2]", "host_in[0]", "h2d[0]"),
    ("device_input", "overwritten_in_use", "copy", "h2d[2]", "device_in[0]", "kernel[0]"),
    ("device_result", "overwritten_in_use", "compute", "kernel[2]", "device_out[0]", "d2h[0]"),
    ("host_result", "read_before_written", "host", "use[0]", "host_out[0]", "d2h[0]"),
    ("input_ready", "read_before_written", "compute", "kernel[0]", "device_in[0]", "h2d[0]"),
    ("result_ready", "read_before_written", "back", "d2h[0]", "device_out[0]", "kernel[0]"),
  ],
)
def test_each_event_left_out_is_found(omitted, kind, stream, operation, buffer, earlier):
  # where the host waits for results it also orders what follows them: leave that out, too
  omit = {omitted} if omitted in ("input_ready", "result_ready") else {omitted, "host_result"}
  findings = hw.simulate_streams(batches(6, omit=omit)).findings
  found = next(finding for finding in findings if (finding.kind, finding.buffer) == (kind, buffer))
  assert (found.stream, found.operation) == (stream, operation)
  assert found.other_operation == earlier
  for word in (stream, operation, buffer, earlier, found.other_stream, "record an event"):
    assert word in found.message


def test_an_order_that_only_timing_keeps_is_found_all_the_same():
  program = [
    hw.Launch("read", 5, reads=("x",), stream="a"),
    hw.Launch("delay", 9, stream="b"),
    hw.Launch("write", 1, writes=("x",), stream="b"),
  ]
  (finding,) = hw.simulate_streams(program).findings
  assert (finding.kind, finding.overlap_us) == ("overwritten_in_use", 0)
  assert "only timing" in finding.message
  program[1] = hw.Launch("delay", 2, stream="b")
  (finding,) = hw.simulate_streams(program).findings
  assert finding.overlap_us == 3


def test_two_writes_without_order_are_found():
  program = [
    hw.Launch("one", 5, writes=("x",), stream="a"),
    hw.Launch("other", 5, writes=("x",), stream="b"),
  ]
  assert [finding.kind for finding in hw.simulate_streams(program).findings] == ["writes_unordered"]
  in_place = [
    hw.Launch("one", 5, reads=("x",), writes=("x",), stream="a"),
    hw.Launch("two", 5, reads=("x",), writes=("x",), stream="a"),
  ]
  assert hw.simulate_streams(in_place).findings == ()


def test_an_event_that_nothing_records_is_named():
  program = [
    hw.Launch("h2d", 8, writes=("x",), stream="copy"),
    hw.Launch("before", 5, stream="compute"),
    hw.Wait("copied", "compute"),
    hw.Launch("kernel", 20, reads=("x",), stream="compute"),
    hw.Record("used", "compute"),
    hw.HostWait("used"),
    hw.HostWork("use"),
  ]
  timeline = hw.simulate_streams(program)
  (finding,) = timeline.findings
  assert (finding.kind, finding.stream, finding.event) == ("never_recorded", "compute", "copied")
  assert "'compute' waits for event 'copied', which nothing records" in finding.message
  assert timeline.unfinished["compute"] == (
    "wait for event 'copied'",
    "kernel",
    "record of event 'used'",
  )
  assert timeline.unfinished["host"] == ("wait for event 'used'", "use")
  assert timeline.submitted_us is None
  assert timeline.interval("before").end_us == 5
  with pytest.raises(ValueError, match=r"name='kernel': nothing of that name ran.*before"):
    timeline.interval("kernel")


def test_an_unrecorded_event_passes_in_cuda_and_shows_as_a_missing_order():
  program = [
    hw.Launch("h2d", 8, writes=("x",), stream="copy"),
    hw.Wait("copied", "compute"),
    hw.Launch("kernel", 20, reads=("x",), stream="compute"),
    hw.Record("copied", "copy"),
  ]
  blocked = hw.simulate_streams(program)
  assert blocked.findings == ()
  assert blocked.interval("kernel").start_us == 8
  passed = hw.simulate_streams(program, unrecorded_wait="passes")
  assert [finding.kind for finding in passed.findings] == ["read_before_written"]
  assert passed.interval("kernel").start_us == 0
  with pytest.raises(ValueError, match=r"unrecorded_wait='skips': expected one of blocks, passes"):
    hw.simulate_streams(program, unrecorded_wait="skips")


def test_streams_that_wait_for_each_other_are_named():
  program = [
    hw.Launch("first", 3, stream="a"),
    hw.Wait("from_b", "a"),
    hw.Launch("on_a", 1, stream="a"),
    hw.Record("from_a", "a"),
    hw.Wait("from_a", "b"),
    hw.Launch("on_b", 1, stream="b"),
    hw.Record("from_b", "b"),
    hw.Launch("apart", 50, stream="c"),
  ]
  timeline = hw.simulate_streams(program)
  (finding,) = timeline.findings
  assert finding.kind == "wait_cycle"
  assert {finding.stream, finding.other_stream} == {"a", "b"}
  assert all(name in finding.message for name in ("'from_a'", "'from_b'", "'a'", "'b'"))
  assert set(timeline.unfinished) == {"a", "b"}
  assert timeline.interval("apart").end_us == timeline.total_us == 50


def test_a_host_that_waits_before_it_records_is_named():
  (finding,) = hw.simulate_streams([hw.HostWait("e"), hw.Record("e", "s")]).findings
  assert (finding.kind, finding.stream, finding.event) == ("wait_cycle", "host", "e")


def test_every_circle_is_found():
  program = []
  for ring in ("x", "y"):
    for stream, waits, sets in (("0", "2", "0"), ("1", "0", "1"), ("2", "1", "2")):
      program += [hw.Wait(ring + waits, ring + stream), hw.Record(ring + sets, ring + stream)]
  # ring x: 0 waits for 2, 1 for 0, 2 for 1; the records of 0 and 1 come before their waits
  findings = hw.simulate_streams(program).findings
  assert [finding.kind for finding in findings] == ["wait_cycle"] * 2
  assert {finding.stream[0] for finding in findings} == {"x", "y"}


def test_a_collective_that_one_card_never_issues_is_named():
  members = ("card0", "card1", "card2")
  program = [
    hw.Launch("work", 7, stream="card1"),
    *[hw.Collective("sum[0]", 5, stream=card, members=members) for card in members],
    *[hw.Collective("sum[1]", 5, stream=card, members=members) for card in members[:2]],
  ]
  timeline = hw.simulate_streams(program)
  (finding,) = timeline.findings
  assert (finding.kind, finding.operation) == ("collective_not_issued", "sum[1]")
  assert finding.other_stream == "card2"
  # all start when the last has come
  assert {timeline.intervals[card, "sum[0]"].start_us for card in members} == {7}


def test_collectives_in_another_order_are_a_circle():
  members = ("card0", "card1")
  program = [
    hw.Collective("sum", 5, stream="card0", members=members),
    hw.Collective("gather", 5, stream="card0", members=members),
    hw.Collective("gather", 5, stream="card1", members=members),
    hw.Collective("sum", 5, stream="card1", members=members),
  ]
  (finding,) = hw.simulate_streams(program).findings
  assert finding.kind == "wait_cycle"
  assert "one order on all streams" in finding.message


def test_slow_and_stuck_are_told_apart():
  program = [
    hw.Launch("long", 100, stream="a"),
    hw.Record("slow", "a"),
    hw.Wait("slow", "b"),
    hw.Wait("never", "c"),
  ]
  timeline = hw.simulate_streams(program)
  waits = {wait.event: wait for wait in timeline.waits_at(10)}
  assert (waits["slow"].status, waits["slow"].recorded_by, waits["slow"].until_us) == (
    "slow",
    "a",
    100,
  )
  assert (waits["never"].status, waits["never"].recorded_by) == ("stuck", None)
  assert [wait.event for wait in timeline.waits_at(100)] == ["never"]


def test_engines_are_shared_between_streams_and_the_host_runs_ahead():
  program = [
    hw.Launch("one", 5, stream="a", resource="compute", submit_us=1),
    hw.Launch("two", 5, stream="b", resource="compute", submit_us=1),
    hw.HostWork("next", 2),
  ]
  timeline = hw.simulate_streams(program)
  assert timeline.interval("one").start_us == 1
  assert timeline.interval("two").start_us == 6
  assert timeline.interval("two").queued_us == 4
  assert timeline.submitted_us == 4
  both = hw.simulate_streams(program, capacities={"compute": 2})
  assert both.interval("two").start_us == 2


@pytest.mark.parametrize(
  ("program", "message"),
  [
    ([hw.Launch("k", 1), hw.Launch("k", 1)], "two operations are named 'k'"),
    ([hw.Launch("k", 1, stream="host")], "the host's own queue"),
    (["k"], r"program\[0\]='k': expected HostWork"),
    (
      [hw.Collective("c", stream="a", members=("a",))] * 2,
      r"stream 'a' issues Collective\('c'\) twice",
    ),
    (
      [
        hw.Collective("c", stream="a", members=("a", "b")),
        hw.Collective("c", stream="b", members=("b",)),
      ],
      r"members=\('b',\) on stream 'b': expected",
    ),
  ],
)
def test_a_malformed_program_is_refused(program, message):
  with pytest.raises(ValueError, match=message):
    hw.simulate_streams(program)


def test_malformed_operations_are_refused():
  with pytest.raises(ValueError, match=r"Launch\('k'\).duration_us=-1"):
    hw.Launch("k", -1)
  with pytest.raises(ValueError, match=r"HostWork\('k'\).reads='x': expected a sequence"):
    hw.HostWork("k", reads="x")
  with pytest.raises(ValueError, match=r"Collective\('c'\).members=\('b',\): expected stream 'a'"):
    hw.Collective("c", stream="a", members=("b",))


def random_program(rng):
  """Operations on three streams with two buffers and three events, well ordered or not."""
  program = []
  for index in range(rng.randint(2, 12)):
    stream = rng.choice("abc")
    event = rng.choice("xyz")
    buffers = {
      "reads": tuple(name for name in "pq" if rng.random() < 0.3),
      "writes": tuple(name for name in "pq" if rng.random() < 0.2),
    }
    kind = rng.choice(["launch"] * 3 + ["record", "record", "wait", "wait", "host", "host_wait"])
    program.append(
      {
        "launch": hw.Launch(str(index), 1, stream=stream, **buffers),
        "record": hw.Record(event, stream),
        "wait": hw.Wait(event, stream),
        "host": hw.HostWork(str(index), 1, **buffers),
        "host_wait": hw.HostWait(event),
      }[kind]
    )
  return program


def timed(program, durations):
  return [
    type(operation)(
      **{
        **{field: getattr(operation, field) for field in operation.__dataclass_fields__},
        "duration_us": durations(operation),
      }
    )
    if isinstance(operation, hw.Launch | hw.HostWork)
    else operation
    for operation in program
  ]


def overlapping(program, timeline):
  """Whether two accesses of a buffer, one a write, ran in another order than issued."""
  ran = [
    (operation, timeline.interval(operation.name))
    for operation in program
    if isinstance(operation, hw.Launch | hw.HostWork)
    and any(name == operation.name for _, name in timeline.intervals)
  ]
  for place, (first, before) in enumerate(ran):
    for second, after in ran[place + 1 :]:
      shared = set(first.writes) & {*second.reads, *second.writes}
      shared |= set(first.reads) & set(second.writes)
      if shared and after.start_us < before.end_us:
        return True
  return False


def test_findings_are_exactly_what_some_timing_can_break():
  rng = random.Random(3)
  clean = faulty = 0
  for _ in range(300):
    program = random_program(rng)
    findings = [
      finding for finding in hw.simulate_streams(program).findings if finding.buffer is not None
    ]
    for finding in findings:
      faulty += 1
      # the earlier access takes very long, all else no time: the fault shows
      slow = timed(program, lambda op, name=finding.other_operation: 1000 * (op.name == name))
      broken = hw.simulate_streams(slow)
      shown = [
        other
        for other in broken.findings
        if (other.operation, other.other_operation, other.buffer)
        == (finding.operation, finding.other_operation, finding.buffer)
      ]
      assert shown
      assert all(other.overlap_us > 0 for other in shown)
    if not findings:
      clean += 1
      for _ in range(5):
        shaken = timed(program, lambda op: rng.randint(0, 9))
        assert not overlapping(shaken, hw.simulate_streams(shaken))
  assert clean > 50
  assert faulty > 50


def stuck_by_walking(program):
  """The steps that never run, found by moving each queue as far as it goes."""
  queues = {"host": []}
  recorded_for = {}
  for index, operation in enumerate(program):
    on_host = isinstance(operation, hw.HostWork | hw.HostWait)
    stream = "host" if on_host else operation.stream
    queues["host"].append(index)
    if not on_host:
      queues.setdefault(stream, []).append(index)
    if isinstance(operation, hw.Wait | hw.HostWait):
      records = [
        place
        for place, other in enumerate(program)
        if isinstance(other, hw.Record) and other.event == operation.event
      ]
      earlier = [place for place in records if place < index]
      recorded_for[index] = earlier[-1] if earlier else (records or [None])[0]
  issued, done = set(), set()
  moved = True
  while moved:
    moved = False
    for stream, queue in queues.items():
      while queue:
        index = queue[0]
        operation = program[index]
        on_host = isinstance(operation, hw.HostWork | hw.HostWait)
        if stream == "host" and not on_host:
          issued.add(index)
          queue.pop(0)
          moved = True
          continue
        is_wait = isinstance(operation, hw.Wait | hw.HostWait)
        blocked = is_wait and recorded_for[index] not in done
        if blocked or (stream != "host" and index not in issued):
          break
        done.add(index)
        queue.pop(0)
        moved = True
  return len(program) - len(done)


def test_what_is_stuck_is_what_walking_the_queues_leaves():
  rng = random.Random(4)
  stuck = 0
  for _ in range(400):
    program = random_program(rng)
    timeline = hw.simulate_streams(program)
    left = stuck_by_walking(program)
    stuck += left > 0
    assert sum(map(len, timeline.unfinished.values())) == left
    kinds = {finding.kind for finding in timeline.findings}
    assert bool(kinds & {"never_recorded", "wait_cycle"}) == (left > 0)
  assert stuck > 50
