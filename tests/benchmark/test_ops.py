"""An op is one object: one that nothing else knows of goes through every task."""

import dataclasses
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import hw_profiles
import pallas_kernels
from pallas_kernels.benchmark import flags, main, ops, rows
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.ops.op import Op, Shape, option, option_flags
from pallas_kernels.benchmark.ops.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class RowsShape(Shape):
  rows: int
  columns: int


@dataclasses.dataclass(frozen=True)
class RowsConfig:
  block_rows: int
  block_columns: int
  num_stages: int = 2

  def describe(self):
    return (
      f"block_rows={self.block_rows},block_columns={self.block_columns},"
      f"num_stages={self.num_stages}"
    )


def positive(text):
  value = float(text)
  if value <= 0:
    raise ValueError("expected a positive number")
  return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledSumOptions:
  factor: float = option(1.0, "Factor of the sum.", read=positive)
  out_dtype: str | None = option(None, "Result dtype", choices=("float32",))
  negate: bool = option(False, "Change the sign.", tasks=("compare", "run"))


class ScaledSum(Op):
  """factor·(x + y), elementwise, priced like copying as many rows."""

  name = "scaled_sum"
  shape_class = RowsShape
  default_shape = RowsShape(rows=96, columns=40)
  config_class = RowsConfig
  default_tiles = (RowsConfig(16, 8), RowsConfig(32, 16, 1))
  options_class = ScaledSumOptions
  dtypes = ("float32", "float16")
  peers = ("numpy",)

  def problem(self, shape, dtype, options):
    return hw_profiles.MatmulProblem(m=shape.rows, k=16, n=shape.columns, dtype=dtype)

  def plan(self, problem, config, profile):
    tile = hw_profiles.MatmulConfig(config.block_rows, 16, config.block_columns, config.num_stages)
    return hw_profiles.plan(problem, tile, profile)

  def best(self, problem, profile):
    return RowsConfig(64, 8)

  def describe_plan(self, plan):
    return ("a line of its own",)

  def flops(self, shape):
    return 2 * shape.rows * shape.columns

  def once_through_bytes(self, shape, dtype, options):
    return 3 * shape.rows * shape.columns * np.dtype(dtype).itemsize

  def steps(self, shape, config):
    return -(-shape.rows // config.block_rows), -(-shape.columns // config.block_columns)

  def operand_shapes(self, shape, options):
    return ((shape.rows, shape.columns), (shape.rows, shape.columns))

  def sample(self, shape):
    return dataclasses.replace(shape, rows=min(shape.rows, 4))

  def cut(self, operands, part):
    return tuple(operand[: part.rows] for operand in operands)

  def describe_part(self, part, whole):
    return f"rows 0:{part.rows}"

  def explain(self, shape, dtype, options, *, config, implementation):
    if config is not None and config.block_rows > 64:
      raise ValueError("block_rows: more than 64")
    return pallas_kernels.Explanation(
      op=self.name,
      call="",
      device="cpu",
      implementation=implementation,
      config=config or self.default_tiles[0],
      plan=None,
      refused={},
    )

  def call(self, options, *, config, implementation):
    return lambda x, y: (x + y) * jnp.asarray(options.factor * (1 - 2 * options.negate), x.dtype)

  def peer(self, name, options):
    return lambda x, y: options.factor * (x + y)

  def check(self, actual, operands, options, *, ran, config, platform):
    x, y = (operand.astype(np.float64) for operand in operands)
    exact = options.factor * (x + y) * (1 if ran == "numpy" else 1 - 2 * options.negate)
    fraction = float(np.max(np.abs(actual - exact) / (1e-6 + 1e-6 * np.abs(exact))))
    return Verdict(
      check=rows.PASSED if fraction <= 1 else rows.FAILED, worst_bound_fraction=fraction
    )


@pytest.fixture
def scaled_sum(monkeypatch):
  op = ScaledSum()
  monkeypatch.setattr(ops, "_OPS", dict(ops._OPS))
  ops.register(op)
  return op


def rows_of(capsys, *arguments, status=0):
  assert main.main(["--kernel=scaled_sum", *arguments, "--format=json"]) == status
  return json.loads(capsys.readouterr().out)["rows"]


def test_plan_prices_the_tiles_of_the_op(scaled_sum, capsys):
  found = rows_of(capsys, "--task=plan", "--profile=h100_sxm,ascend_910b3", "--factor=2.5")
  assert [(row["tile"], row["profile"]) for row in found] == [
    ("block_rows=16,block_columns=8,num_stages=2", "h100_sxm"),
    ("block_rows=16,block_columns=8,num_stages=2", "ascend_910b3"),
    ("block_rows=32,block_columns=16,num_stages=1", "h100_sxm"),
    ("block_rows=32,block_columns=16,num_stages=1", "ascend_910b3"),
    ("block_rows=64,block_columns=8,num_stages=2", "h100_sxm"),
    ("block_rows=64,block_columns=8,num_stages=2", "ascend_910b3"),
  ]
  for row in found:
    assert (row["kernel"], row["shape"]) == ("scaled_sum", "rows=96,columns=40")
    assert row["dtype"] == "float32"
    assert "--factor=2.5" in row["arguments"]
    assert "negate" not in row["arguments"]


def test_run_runs_the_op_and_its_peer_and_checks_both(scaled_sum, capsys):
  arguments = ["--task=run", "--shape=rows=5:7:2,columns=3", "--factor=0.5", "--peers=numpy"]
  found = rows_of(capsys, *arguments)
  assert [(row["shape"], row["implementation"]) for row in found] == [
    ("rows=5,columns=3", "interpret"),
    ("rows=5,columns=3", "peer:numpy"),
    ("rows=7,columns=3", "interpret"),
    ("rows=7,columns=3", "peer:numpy"),
  ]
  assert {row["check"] for row in found} == {"passed"}


def test_line_of_a_row_gives_it_again(scaled_sum, capsys):
  (first,) = rows_of(capsys, "--task=run", "--shape=rows=5,columns=3", "--factor=0.5", "--negate")
  arguments = first["arguments"].split()[1:]
  (again,) = rows_of(capsys, *arguments)
  assert again == first


@pytest.mark.parametrize(("programs", "whole"), [(10**5, 1), (10**6, 0)])
def test_compare_runs_a_part_where_all_would_take_long(
  programs, whole, scaled_sum, capsys, monkeypatch
):
  # estimated at 9 s only the tile with the least work is run on all rows, at 85 s none
  monkeypatch.setattr(type(scaled_sum), "steps", lambda *_: (programs, 1))
  found = rows_of(capsys, "--task=compare", "--profile=h100_sxm", "--shape=rows=96,columns=40")
  expected = ["all"] * whole + ["rows 0:4"] * (3 - whole)
  assert sorted(row["checked"] for row in found) == expected
  assert {row["check"] for row in found} == {"passed"}


def test_tile_that_the_op_refuses_has_a_row_with_its_reason(scaled_sum, capsys):
  tile = "--tile=block_rows=128,block_columns=8"
  for task, status in (("--task=run", 2), ("--task=compare", 0)):
    (row,) = rows_of(capsys, task, tile, "--profile=h100_sxm", status=status)
    assert row["check"] == "not run"
    assert "not run: block_rows: more than 64" in row["notes"]


def test_wrong_result_of_the_op_is_status_1(scaled_sum, capsys, monkeypatch):
  monkeypatch.setattr(type(scaled_sum), "call", lambda *_, **__: lambda x, y: x - y)
  (row,) = rows_of(capsys, "--task=run", status=1)
  assert row["check"] == "failed"


def test_table_and_help_speak_of_the_op_in_its_own_terms(scaled_sum, capsys):
  assert main.main(["--kernel=scaled_sum", "--profile=h100_sxm", "--factor=2.0"]) == 0
  text = capsys.readouterr().out
  assert "scaled_sum rows=96,columns=40 float32 --factor=2.0" in text
  assert "tile: block_rows x block_columns / num_stages" in text
  assert "16x8/2: working set" in text
  assert main.main(["--kernel=scaled_sum", "--task=plan", "--profile=h100_sxm"]) == 0
  assert "a line of its own" in capsys.readouterr().out
  assert main.main(["--help"]) == 0
  text = " ".join(capsys.readouterr().out.split())
  assert "Factor of the sum. An option of scaled_sum." in text
  (takers,) = {
    takers
    for takers in re.findall(r"An option of ([a-z_, ]+)\.", text)
    if "scaled_sum, " in takers or takers.endswith(", scaled_sum")
  }
  assert takers.startswith("matmul, ")
  assert "scaled_sum: rows=96,columns=40" in text


def test_all_is_every_op_each_with_its_own_shape(scaled_sum):
  workloads = flags.parse(["--kernel=all"]).workloads
  found = [(w.op.name, str(w.shape), w.dtype) for w in workloads]
  assert found[0] == ("matmul", "m=1024,k=4096,n=12288", "bfloat16")
  assert found[-1] == ("scaled_sum", "rows=96,columns=40", "float32")
  for name, shape, dtype in found:
    op = ops.get(name)
    assert (shape, dtype) == (str(op.default_shape), op.dtypes[0])


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["--kernel=scaled_sum", "--shape=m=1,k=2,n=3"], ["unknown name 'm'", "rows, columns"]),
    (
      ["--kernel=scaled_sum", "--tile=block_m=16"],
      ["unknown name 'block_m'", "block_rows, block_columns"],
    ),
    (["--kernel=scaled_sum", "--bias"], ["--bias is not an option of scaled_sum, only of matmul"]),
    (["--kernel=all", "--factor=2"], ["--factor is not an option of matmul", "--kernel=matmul"]),
    (["--kernel=scaled_sum", "--factor=-1"], ["--factor=-1", "expected a positive number"]),
    (["--kernel=scaled_sum", "--dtype=bfloat16"], ["--dtype=bfloat16", "float32, float16"]),
    (["--kernel=scaled_sum", "--out_dtype=float16"], ["--out_dtype=float16", "one of float32"]),
    (["--kernel=scaled_sum", "--task=plan", "--negate"], ["--negate is not read by --task=plan"]),
    (["--kernel=scaled_sum", "--task=run", "--peers=xla"], ["--peers=xla", "numpy"]),
  ],
)
def test_flag_that_the_op_does_not_take_is_refused(scaled_sum, arguments, words):
  with pytest.raises(UsageError) as error:
    flags.parse(arguments)
  for word in words:
    assert word in str(error.value)


def test_options_are_flags_again():
  assert option_flags(ScaledSumOptions()) == []
  options = ScaledSumOptions(factor=2.0, out_dtype="float32", negate=True)
  assert option_flags(options) == ["--factor=2.0", "--out_dtype=float32", "--negate"]


def test_name_is_registered_once(scaled_sum):
  with pytest.raises(ValueError, match="'scaled_sum' is registered already"):
    ops.register(scaled_sum)


def test_one_flag_is_of_one_kind(scaled_sum):
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Clashing:
    bias: str | None = option(None, "A word.", choices=("row",))

  class Other(ScaledSum):
    name = "other"
    options_class = Clashing

  with pytest.raises(ValueError, match=r"option 'bias' of other: .* for matmul"):
    ops.register(Other())
