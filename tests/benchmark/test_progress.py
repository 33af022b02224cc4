"""Progress lines and the time they say is left."""

import io
import threading

import pytest

from pallas_kernels.benchmark.progress import Progress, Step


class Clock:
  def __init__(self):
    self.now_s = 0.0

  def __call__(self):
    return self.now_s


def make(steps, rates, clock, stream=None, heartbeat_s=60.0):
  return Progress(
    steps, rates=rates, stream=stream or io.StringIO(), clock=clock, heartbeat_s=heartbeat_s
  )


def test_guess_serves_until_a_step_of_the_kind_has_finished():
  clock = Clock()
  steps = [Step("kernel", "a", 2.0), Step("kernel", "b", 6.0), Step("check", "c", 1.0)]
  progress = make(steps, {"kernel": 1.0, "check": 10.0}, clock)
  assert progress.left_s() == pytest.approx(18.0)
  with progress.next():
    clock.now_s += 8.0  # 4 s a unit, not 1
  assert progress.left_s() == pytest.approx(6 * 4.0 + 10.0)


def test_running_step_counts_down_and_not_below_zero():
  progress = make([Step("kernel", "a", 5.0), Step("kernel", "b", 1.0)], {"kernel": 1.0}, Clock())
  assert progress.left_s(2.0) == pytest.approx(4.0)
  assert progress.left_s(50.0) == pytest.approx(1.0)


def test_every_step_says_its_place_and_what_is_left():
  clock, stream = Clock(), io.StringIO()
  progress = make([Step("k", "first", 1.0), Step("k", "second", 3.0)], {"k": 2.0}, clock, stream)
  with progress.next():
    clock.now_s += 1.0
  with progress.next() as step:
    assert step.label == "second"
  assert stream.getvalue().splitlines() == [
    "pallas-bench: [1/2] first; about 8 s left",
    "pallas-bench: [2/2] second; about 3 s left",
  ]


def test_step_that_lasts_reports_while_it_runs():
  reported = threading.Event()

  class Stream(io.StringIO):
    def write(self, text):
      if "so far" in text:
        reported.set()
      return super().write(text)

  stream = Stream()
  progress = make([Step("k", "long", 1.0)], {"k": 90.0}, Clock(), stream, heartbeat_s=0.01)
  with progress.next():
    assert reported.wait(10.0)
  assert "long: 0 s so far; about 2 min left" in stream.getvalue()


def test_step_that_raises_stops_its_reports():
  progress = make([Step("k", "a", 1.0)], {"k": 1.0}, Clock(), heartbeat_s=0.01)
  before = threading.active_count()
  with pytest.raises(KeyError), progress.next():
    raise KeyError
  assert threading.active_count() == before
