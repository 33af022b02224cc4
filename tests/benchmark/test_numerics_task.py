"""`--task=numerics`: errors by implementation and kind of data."""

import json
import shlex

import numpy as np
import pytest

from pallas_kernels.benchmark import flags, main, operand_data, ops

SMALL = "--shape=m=33,k=200,n=17"


def rows_of(capsys, *arguments):
  assert main.main(["--task=numerics", "--format=json", *arguments]) == 0
  return json.loads(capsys.readouterr().out)["rows"]


def drawn(kind, dtype="bfloat16", name="matmul"):
  op = ops.get(name)
  shape = op.shape_class(m=64, k=256, n=32)
  normal = op.operands(shape, dtype, op.options_class())
  return normal, operand_data.shaped(normal, dtype, kind)


def test_every_implementation_meets_every_kind_of_data(capsys):
  found = rows_of(capsys, SMALL)
  assert {(row["data"], row["implementation"]) for row in found} == {
    (kind, name) for kind in operand_data.KINDS for name in ("interpret", "xla")
  }
  assert {row["check"] for row in found} == {"passed"}
  # nothing is measured
  assert {row["measured_us"] for row in found} == {None}


def test_sums_of_integers_are_exact_and_others_are_not(capsys):
  errors = {
    (row["data"], row["implementation"]): row["relative_error"]
    for row in rows_of(capsys, SMALL, "--out_dtype=float32")
  }
  for (kind, implementation), error in errors.items():
    assert (error == 0) is (kind == "integers"), (kind, implementation)


def test_where_terms_cancel_more_last_places_are_lost(capsys):
  largest = {
    row["data"]: row["max_ulp"]
    for row in rows_of(capsys, SMALL, "--out_dtype=float32", "--implementation=interpret")
  }
  assert largest["positive"] < largest["normal"]


def test_a_row_s_line_gives_the_row_again(capsys):
  row = rows_of(capsys, SMALL, "--out_dtype=float32")[-2]
  _, *arguments = shlex.split(row["arguments"])
  (again,) = rows_of(capsys, *arguments)
  assert again == row


@pytest.mark.parametrize("kernel", ["rms_norm", "quantize_rows", "swiglu"])
def test_row_wise_ops_have_rows(kernel, capsys):
  found = rows_of(capsys, f"--kernel={kernel}", "--shape=rows=5,columns=33", "--data=positive,wide")
  assert [row["data"] for row in found] == ["positive", "positive", "wide", "wide"]
  assert {row["check"] for row in found} == {"passed"}


def test_large_problems_are_compared_in_part_and_the_same_part_for_all(capsys):
  found = rows_of(capsys, "--shape=m=4096,k=64,n=4096", "--data=normal")
  assert {row["checked"] for row in found} == {"rows 0:128, columns 0:512"}


def test_the_table_says_what_the_data_are(capsys):
  assert main.main(["--task=numerics", SMALL, "--data=wide"]) == 0
  text = " ".join(capsys.readouterr().out.split())
  assert "wide: each element times its own power of two" in text
  assert "positive:" not in text


def test_a_kernel_that_is_wrong_on_one_kind_fails(monkeypatch, capsys):
  from pallas_kernels.benchmark import runner

  right = runner.result

  def wrong(function, operands):
    result = np.array(right(function, operands))
    return (result * 1.02).astype(result.dtype) if operands[0].min() >= 0 else result

  monkeypatch.setattr(runner, "result", wrong)
  assert main.main(["--task=numerics", "--format=json", SMALL]) == 1
  found = json.loads(capsys.readouterr().out)["rows"]
  assert {row["data"] for row in found if row["check"] == "failed"} == {"positive"}


@pytest.mark.parametrize(
  ("arguments", "said"),
  [
    (["--data=normla"], "--data=normla: expected one of normal, positive, wide, integers"),
    (["--data=wide", "--kernel=quantized_matmul"], "float8_e4m3fn operands have normal, positive"),
    (["--check=none"], "--check is not read by --task=numerics"),
    (["--cold_l2"], "--cold_l2 is not read by --task=numerics"),
  ],
)
def test_wrong_flags_are_refused(arguments, said, capsys):
  assert main.main(["--task=numerics", SMALL, *arguments]) == 2
  assert said in " ".join(capsys.readouterr().err.split())


def test_other_tasks_do_not_read_the_kind_of_data(capsys):
  assert main.main(["--task=run", SMALL, "--data=wide"]) == 2
  assert "--data is not read by --task=run" in capsys.readouterr().err


def test_an_implementation_that_refuses_has_no_row_and_none_at_all_is_an_error(capsys):
  # XLA takes no tile
  tile = "--tile=block_m=32,block_n=32,block_k=32"
  found = rows_of(capsys, SMALL, tile, "--data=normal")
  assert [row["implementation"] for row in found] == ["interpret"]
  assert main.main(["--task=numerics", SMALL, "--implementation=triton"]) == 2
  assert "nothing to run" in capsys.readouterr().err


# --- the data


def test_kinds_are_what_they_are_called():
  (a, *_), (magnitudes, *_) = drawn("positive")
  assert np.array_equal(magnitudes, np.abs(a))
  _, (wide, *_) = drawn("wide")
  ratio = np.abs(wide.astype(np.float64) / a.astype(np.float64))
  assert np.all(np.frexp(ratio)[0] == 0.5)
  assert ratio.max() == 2.0**8
  assert ratio.min() == 2.0**-8
  _, (left, right, *_) = drawn("integers")
  for found in (left, right):
    values = found.astype(np.float64)
    assert np.array_equal(values, np.rint(values))
    assert np.abs(values).max() == 4


def test_wide_float16_has_finite_products():
  _, (a, b, *_) = drawn("wide", "float16")
  product = a.astype(np.float64) @ b.astype(np.float64)
  assert np.abs(product).max() < np.finfo(np.float16).max


def test_data_are_the_same_on_every_run_and_scales_stay():
  for _ in range(2):
    _, first = drawn("integers", "int8", "quantized_matmul")
    normal, again = drawn("integers", "int8", "quantized_matmul")
    for x, y in zip(first, again, strict=True):
      assert np.array_equal(x, y)
    assert all(x.dtype == y.dtype for x, y in zip(normal, again, strict=True))
    assert np.array_equal(normal[2], again[2])
  assert operand_data.kinds_of("int8") == ("normal", "positive", "integers")


def test_the_help_names_the_kinds():
  text = " ".join(flags.help_text().split())
  for kind in operand_data.KINDS:
    assert f"{kind} (" in text
