"""What the benchmark knows of the row-wise ops: operands, parts, and how a result is judged."""

import json

import numpy as np
import pytest

from pallas_kernels import RowConfig
from pallas_kernels.benchmark import main, ops, rows

UNIT_ROUNDOFF = 2.0**-24  # of float32
NAMES = ("swiglu", "swiglu_quantize", "quantize_rows", "rms_norm", "transpose")
GRADIENTS = ("swiglu", "rms_norm")
OPTIONS = {
  "swiglu": ["--out_dtype=float32", "--intermediate_dtype=float32"],
  "swiglu_quantize": ["--code_dtype=int8", "--scale=0.25"],
  "quantize_rows": ["--code_dtype=int8"],
  "rms_norm": ["--residual", "--quantize_dtype=int8", "--num_splits=2", "--cast_before_weight"],
  "transpose": [],
}


def rows_of(capsys, *arguments):
  assert main.main([*arguments, "--format=json"]) == 0
  return json.loads(capsys.readouterr().out)["rows"]


@pytest.mark.parametrize("name", NAMES)
def test_run_checks_the_kernel_and_its_peer(name, capsys):
  arguments = (f"--kernel={name}", "--task=run", "--shape=rows=5,columns=111", "--peers=xla")
  ours, peer = rows_of(capsys, *arguments, *OPTIONS[name])
  assert (ours["check"], ours["implementation"]) == ("passed", "interpret")
  assert peer["check"] == "passed"
  assert "xla" in peer["checked_with"]
  for option in OPTIONS[name]:
    assert option in ours["arguments"]


@pytest.mark.parametrize("name", NAMES)
def test_plan_prices_the_tiles_on_both_vendors(name, capsys):
  found = rows_of(
    capsys, f"--kernel={name}", "--task=plan", "--profile=h200_sxm,ascend_910b3", *_planned(name)
  )
  assert {row["vendor"] for row in found} == {"nvidia", "huawei"}
  fitting = [row for row in found if row["fits"]]
  assert {row["profile"] for row in fitting} == {"h200_sxm", "ascend_910b3"}
  assert all(row["predicted_us"] > 0 for row in fitting)


def _planned(name):
  return [flag for flag in OPTIONS[name] if "cast" not in flag and "intermediate" not in flag]


@pytest.mark.parametrize("name", NAMES)
def test_cut_operands_give_that_part_of_the_result(name):
  op = ops.get(name)
  shape = op.shape_class(rows=20, columns=33)
  options = op.options_class()
  operands = op.operands(shape, "float32", options)
  part = op.sample(shape)
  assert (part.rows, part.columns) == (8, 33)
  call = op.call(options, config=None, implementation="xla")
  whole, cut = call(*operands), call(*op.cut(operands, part))
  taken = op.cut_result(whole, part)
  leaves = (taken, cut) if not isinstance(cut, tuple) else zip(taken, cut, strict=True)
  for first, second in [leaves] if not isinstance(cut, tuple) else leaves:
    # a row's sum of squares may be taken in another order: n·u each, halved by the
    # root, in each of the two results
    np.testing.assert_allclose(
      np.asarray(first, np.float64),
      np.asarray(second, np.float64),
      rtol=shape.columns * UNIT_ROUNDOFF,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_result_fails_and_says_where(name):
  op = ops.get(name)
  shape = op.shape_class(rows=4, columns=9)
  options = op.options_class()
  operands = op.operands(shape, "float32", options)
  result = op.call(options, config=None, implementation="xla")(*operands)
  arrays = [np.array(x) for x in (result if isinstance(result, tuple) else (result,))]
  arrays[0][1, 2] = arrays[0].dtype.type(0 if arrays[0][1, 2] else 1)
  wrong = tuple(arrays) if isinstance(result, tuple) else arrays[0]
  verdict = op.check(wrong, operands, options, ran="xla", config=None, platform="cpu")
  assert verdict.check == rows.FAILED
  assert "[1, 2]" in " ".join(verdict.notes)


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_run_with_gradients_checks_each_of_them(name, capsys):
  arguments = (f"--kernel={name}", "--task=run", "--shape=rows=5,columns=111", "--backward")
  ours, xla, stream = rows_of(capsys, *arguments, "--peers=xla,stream")
  assert ours["check"] == "passed"
  assert "--backward" in ours["arguments"]
  assert xla["checked_with"] == "xla on cpu"
  assert stream["check"] == "not run"
  op = ops.get(name)
  options = op.options_class(backward=True)
  shape = op.shape_class(rows=5, columns=111)
  operands = op.operands(shape, "float32", options)
  result = [np.array(x) for x in op.call(options, config=None, implementation="xla")(*operands)]
  for index in range(1, len(result)):
    wrong = [x.copy() for x in result]
    wrong[index].flat[7] += 1
    found = op.check(tuple(wrong), operands, options, ran="xla", config=None, platform="cpu")
    assert found.check == rows.FAILED
    assert "gradient of" in " ".join(found.notes)


@pytest.mark.parametrize("more", [["--residual"], ["--quantize_dtype=int8"]])
def test_gradients_of_several_results_are_refused(more, capsys):
  arguments = ["--kernel=rms_norm", "--task=run", "--shape=rows=2,columns=8", "--backward", *more]
  assert main.main(arguments) == 2
  assert "gradients are measured of the plain result" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("name", "changes"),
  [*((name, {}) for name in NAMES), *((name, {"backward": True}) for name in GRADIENTS)],
)
def test_the_stream_moves_what_the_op_moves(name, changes):
  op = ops.get(name)
  shape = op.shape_class(rows=24, columns=40)
  options = op.options_class(**changes)
  operands = op.operands(shape, "bfloat16", options)
  stream = op.peer("stream", options)
  found = stream(*operands)
  sizes = [x.nbytes for x in operands if x is not None and x.ndim > 1]
  if changes:
    # behind the result all but its gradient is read again
    sizes += sizes[:-1]
  # beside matrices a program reads a weight, again for the gradient that it writes, or it writes
  # a scale for each row
  weights = sum(x.nbytes for x in operands if x is not None and x.ndim == 1) * (3 if changes else 1)
  scales = 4 * shape.rows if "quantize" in name else 0
  moved = sum(sizes) + sum(x.nbytes for x in found)
  assert moved + weights + scales == op.once_through_bytes(shape, "bfloat16", options)
  # no two results are the same: XLA has to write each
  assert len({np.asarray(x).tobytes() for x in found}) == len(found)
  # and every matrix is read whole
  for index, x in enumerate(operands):
    if x is not None and x.ndim > 1:
      others = [*operands]
      others[index] = (4 - x.astype(np.float32)).astype(x.dtype)
      changed = stream(*others)
      assert np.mean(np.asarray(changed[-1]) != np.asarray(found[-1])) > 0.9


def test_a_tile_of_the_user_runs(capsys):
  (row,) = rows_of(
    capsys,
    "--kernel=rms_norm",
    "--task=run",
    "--shape=rows=3,columns=50",
    "--tile=block_rows=2,block_cols=16,num_splits=2",
  )
  assert row["check"] == "passed"
  assert row["tile"] == RowConfig(2, 16, num_splits=2).describe()
