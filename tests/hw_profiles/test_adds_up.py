"""A prediction recomputed by hand from what its plan prints, and nothing else."""

import math
import re

import pytest

import hw_profiles as hw
from hw_profiles.cost.time_term import added, leaf, longest, repeated, shared

FFN = hw.MatmulProblem(1024, 4096, 12288, activation="silu")
PROBLEMS = {
  "matmul": FFN,
  "matmul of few tiles": hw.MatmulProblem(1, 12288, 4096),
  "matmul float32": hw.MatmulProblem(500, 300, 700, "float32"),
  "gated": hw.MatmulProblem(1000, 4100, 1230, products=2),
  "quantized": hw.MatmulProblem(1024, 4096, 4096, "int8", out_dtype="bfloat16", scaled=True),
  "attention": hw.AttentionProblem(2, 1024, 1024, 8, causal=True),
  "attention gradients": hw.AttentionProblem(1, 1024, 1024, 8, backward=True),
  "decode": hw.DecodeProblem(4, 4096, 32, 8),
  "swiglu": hw.SwigluProblem(1024, 12288),
  "rms_norm in parts": hw.RmsNormProblem(2, 65536),
  "transpose": hw.TransposeProblem(1024, 4096),
}
PROFILES = ("h200_sxm", "a100_sxm4_80gb", "v100_sxm2", "b200", "ascend_910b3", "ascend_950pr")

# A printed time has five digits: it is off by 0.5 in the fifth, of a number that may begin
# with 1. Sums, maxima and multiples of such times are off by no more, relatively. One factor
# of a product, the share of a softmax that is exposed, is no whole number, and printed so, too.
_ROUNDING = 0.5e-4
_OPERAND = re.compile(r"(?P<name>[a-z][a-z0-9_ :-]*?) (?P<us>[\d,]+(\.\d+)?)$")
_COUNT = re.compile(r"(?P<count>[\d,]+(\.\d+)?)( [a-z][a-z -]*)?$")


def _value(text):
  return float(text.replace(",", ""))


class _Whiteboard:
  """The printed lines, by the name that each explains, and the numbers that stand in them."""

  def __init__(self, lines):
    self.expressions = {}
    self.printed = {}
    for line in lines:
      left, _, right = line.partition(" = ")
      name = self._read(left, label="")
      assert name not in self.expressions
      self.expressions[name] = right

  def _read(self, operand, label):
    found = _OPERAND.match(operand)
    name, us = label + found["name"], _value(found["us"])
    # one name is one number, wherever it stands
    assert self.printed.setdefault(name, us) == us
    return name

  def recompute(self, name):
    """From the times alone that no line explains."""
    if name not in self.expressions:
      return self.printed[name]
    text = self.expressions[name]
    label = "".join(name.rpartition(": ")[:2])

    def known(operand):
      return self.recompute(self._read(operand, label))

    if text.startswith("max("):
      # a comma with a space behind it is not one between thousands
      return max(map(known, text.removeprefix("max(").removesuffix(")").split(", ")))
    if " + " in text:
      return sum(map(known, text.split(" + ")))
    if " / " in text:
      operand, count = text.split(" / ")
      return known(operand) / _value(_COUNT.match(count)["count"])
    *counts, operand = text.split(" x ")
    return math.prod(_value(_COUNT.match(count)["count"]) for count in counts) * known(operand)


def _plans(problem, profile):
  ranked = hw.rank(problem, profile, top=None)
  return [ranked[0], ranked[-1]]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_prediction_can_be_recomputed_from_what_is_printed(name, profile):
  for planned in _plans(PROBLEMS[name], profile):
    if not planned.fits:
      assert planned.adds_up() == ()
      continue
    board = _Whiteboard(planned.adds_up())
    assert board.recompute("predicted") == pytest.approx(planned.predicted_us, rel=2 * _ROUNDING)
    # each line by itself, from the numbers that stand in it: the result is rounded, too
    for explained, text in board.expressions.items():
      alone = _Whiteboard([f"{explained} {board.printed[explained]:.9f} = {text}"])
      assert alone.recompute(explained) == pytest.approx(
        board.printed[explained], rel=3 * _ROUNDING
      )
    # no line is there for nothing
    operands = set(board.printed) - {"predicted"}
    assert set(board.expressions) - {"predicted"} <= operands


def test_the_busy_times_are_the_steps_of_the_busiest_sm():
  tile = hw.MatmulConfig(128, 256, 64, 4)
  planned = hw.plan(FFN, tile, "h200_sxm", schedule="warp_specialized")
  board = _Whiteboard(planned.adds_up())
  # 8 x 48 tiles on 132 SMs: three on the busiest, 64 steps of K each
  assert planned.grid == (8, 48)
  assert board.expressions["steps"].startswith("3 tiles x 64 steps x ")
  board.recompute("predicted")
  for resource in ("tensor_cores", "shared_memory", "l2", "latency"):
    busy_us = 3 * 64 * board.printed[resource]
    assert busy_us == pytest.approx(planned.times_us[resource], rel=_ROUNDING)
  for whole in ("dram", "launch"):
    assert board.printed[whole] == pytest.approx(planned.times_us[whole], rel=_ROUNDING)


def test_attention_counts_the_steps_of_the_busiest_sm():
  problem = hw.AttentionProblem(2, 4096, 4096, 32, 8, causal=True)
  planned = hw.plan(problem, hw.AttentionConfig(128, 128, 2), "h200_sxm")
  board = _Whiteboard(planned.adds_up())
  steps, tiles = re.search(r"busiest SM (\d+) in (\d+) program", " ".join(planned.notes)).groups()
  assert board.expressions["steps"].startswith(f"{steps} steps x ")
  assert board.expressions["epilogue"].startswith(f"{tiles} results x ")


def test_a_term_is_its_expression():
  step = longest("step", leaf("cube", 0.25), leaf("mte2", 0.125))
  steps = repeated("steps", step, (3, "tiles"), (64, "steps"))
  total = added(
    "predicted", leaf("launch", 5.0), steps, shared("wait", leaf("slot", 2.0), 4, "slots")
  )
  assert total.us == 5.0 + 3 * 64 * 0.25 + 0.5
  assert total.lines() == (
    "predicted 53.5 = launch 5 + steps 48 + wait 0.5",
    "steps 48 = 3 tiles x 64 steps x step 0.25",
    "step 0.25 = max(cube 0.25, mte2 0.125)",
    "wait 0.5 = slot 2 / 4 slots",
  )
  assert leaf("launch", 5.0).lines() == ()


def test_what_changes_nothing_is_no_line():
  alone = longest("overlapped", added("steps", leaf("cube", 2.0), leaf("nothing", 0.0)))
  total = added("predicted", leaf("launch", 1.0), shared("rest", alone, 1, "slots"))
  assert total.lines() == ("predicted 3 = launch 1 + rest 2",)


def test_a_label_holds_for_its_line():
  kernel = added("time", leaf("fill", 1.0), repeated("steps", leaf("step", 0.5), (4, "steps")))
  total = added("predicted", kernel.labelled("kernel 1"), kernel.labelled("kernel 2"))
  assert total.lines() == (
    "predicted 6 = kernel 1: time 3 + kernel 2: time 3",
    "kernel 1: time 3 = fill 1 + steps 2",
    "kernel 1: steps 2 = 4 steps x step 0.5",
    "kernel 2: time 3 = fill 1 + steps 2",
    "kernel 2: steps 2 = 4 steps x step 0.5",
  )


@pytest.mark.parametrize(
  ("us", "text"),
  [(12345.6, "12,346"), (1234.56, "1,234.6"), (0.001234567, "0.0012346"), (2.5, "2.5")],
)
def test_times_have_five_digits(us, text):
  (line,) = added("predicted", leaf("a", us), leaf("b", us)).lines()
  assert line.endswith(f" = a {text} + b {text}")


def test_a_kernel_without_work_is_its_launch():
  (ranked,) = hw.rank(hw.SwigluProblem(8, 64), "h200", top=1)
  assert hw.plan(hw.SwigluProblem(0, 64), ranked.config, "h200").adds_up() == (
    "predicted 0.35 = launch 0.35",
  )
