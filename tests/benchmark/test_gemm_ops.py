"""What the benchmark knows of gated_matmul and quantized_matmul: operands, parts, verdicts."""

import json

import numpy as np
import pytest

import pallas_kernels
import reference
from pallas_kernels.benchmark import main
from pallas_kernels.benchmark.ops.gated_matmul import GATED_MATMUL, GatedMatmulOptions
from pallas_kernels.benchmark.ops.gemm import MatmulShape
from pallas_kernels.benchmark.ops.matmul import MATMUL, MatmulOptions
from pallas_kernels.benchmark.ops.quantize_matmul import QUANTIZE_MATMUL, QuantizeMatmulOptions
from pallas_kernels.benchmark.ops.quantized_matmul import (
  QUANTIZED_MATMUL,
  QuantizedMatmulOptions,
)

SHAPE = MatmulShape(m=70, k=100, n=90)
BATCHED = MatmulShape(m=5, k=33, n=18, batch=3)
OPS = [
  (GATED_MATMUL, GatedMatmulOptions(), "bfloat16"),
  (GATED_MATMUL, GatedMatmulOptions(), "float32"),
  (QUANTIZED_MATMUL, QuantizedMatmulOptions(), "float8_e4m3fn"),
  (QUANTIZED_MATMUL, QuantizedMatmulOptions(out_dtype="float32"), "int8"),
  (QUANTIZE_MATMUL, QuantizeMatmulOptions(), "bfloat16"),
]


def rows_of(capsys, *arguments):
  assert main.main([*arguments, "--format=json"]) == 0
  return json.loads(capsys.readouterr().out)["rows"]


@pytest.mark.parametrize("shape", [SHAPE, BATCHED], ids=str)
@pytest.mark.parametrize(("op", "options", "dtype"), OPS)
def test_operands_are_what_the_shapes_say_the_same_on_every_run(op, options, dtype, shape):
  first, second = (op.operands(shape, dtype, options) for _ in range(2))
  described = op.abstract_operands(shape, dtype, options)
  assert len(first) == len(described)
  for one, again, abstract in zip(first, second, described, strict=True):
    assert np.array_equal(one, again)
    assert (one.shape, one.dtype) == (abstract.shape, abstract.dtype)
    assert np.any(one != 0)


def test_codes_and_scales_stand_for_normal_matrices():
  a, b, a_scale, b_scale = QUANTIZED_MATMUL.operands(SHAPE, "int8", QuantizedMatmulOptions())
  # each row and each column uses the whole range of its codes
  assert np.all(np.max(np.abs(a), axis=1) == 127)
  assert np.all(np.max(np.abs(b), axis=0) == 127)
  values = a.astype(np.float64) * a_scale
  assert abs(np.std(values) - 1) < 0.05
  assert b_scale.shape == (1, SHAPE.n)


@pytest.mark.parametrize(("op", "options", "dtype"), OPS)
def test_part_has_the_rows_of_one_operand_and_the_columns_of_the_others(op, options, dtype):
  whole = op.operands(SHAPE, dtype, options)
  part = MatmulShape(m=7, k=SHAPE.k, n=11)
  cut = op.cut(whole, part)
  assert [array.shape for array in cut] == list(op.operand_shapes(part, options))
  for piece, array in zip(cut, whole, strict=True):
    assert np.array_equal(piece, array[: piece.shape[0], : piece.shape[1]])
  assert op.describe_part(part, SHAPE) == "rows 0:7, columns 0:11"


@pytest.mark.parametrize(
  ("kernel", "flags"),
  [
    ("gated_matmul", ["--dtype=float32"]),
    ("gated_matmul", ["--intermediate_dtype=float32", "--out_dtype=float16"]),
    ("quantized_matmul", ["--dtype=int8"]),
    ("quantized_matmul", ["--dtype=float8_e4m3fn", "--out_dtype=float32"]),
  ],
)
def test_kernel_and_peer_are_within_their_bounds(capsys, kernel, flags):
  found = rows_of(
    capsys, "--task=run", f"--kernel={kernel}", f"--shape={SHAPE}", "--peers=xla", *flags
  )
  assert [row["implementation"] for row in found] == ["interpret", "peer:xla"]
  for row in found:
    assert row["check"] == "passed"
    assert row["worst_bound_fraction"] <= 1


@pytest.mark.parametrize(("op", "options", "dtype"), OPS)
def test_wrong_result_fails(op, options, dtype):
  operands = op.operands(SHAPE, dtype, options)
  right = op.call(options, config=None, implementation="xla")(*operands)
  judged = {"ran": "xla", "config": None, "platform": "cpu"}
  assert op.check(np.asarray(right), operands, options, **judged).check == "passed"
  wrong = np.asarray(right).copy()
  wrong[3, 4] = wrong[3, 4] * wrong.dtype.type(1.5) + wrong.dtype.type(1)
  verdict = op.check(wrong, operands, options, **judged)
  assert verdict.check == "failed"
  assert "[3, 4]" in verdict.notes[0]


@pytest.mark.parametrize(
  ("kernel", "flags", "gradients"),
  [
    ("matmul", [], ("a", "b")),
    ("matmul", ["--bias", "--activation=silu", "--out_dtype=float32"], ("a", "b", "bias")),
    ("gated_matmul", [], ("x", "w_gate", "w_up")),
  ],
)
def test_gradients_run_and_are_judged_beside_the_result(
  capsys, monkeypatch, kernel, flags, gradients
):
  judged = []
  within = reference.check_within

  def check_within(actual, expected):
    judged.append(actual.shape)
    return within(actual, expected)

  monkeypatch.setattr(reference, "check_within", check_within)
  arguments = ["--task=run", f"--kernel={kernel}", f"--shape={SHAPE}", "--backward", *flags]
  ours, peer = rows_of(capsys, *arguments, "--peers=xla")
  assert len(judged) == 2 * len(gradients)
  assert {row["check"] for row in (ours, peer)} == {"passed"}
  assert any("measured with gradients" in note for note in ours["notes"])
  # a wrong one fails, and says which
  monkeypatch.setattr(reference, "check_within", lambda actual, x: within(actual * 0, x))
  assert main.main([*arguments, "--format=json"]) == 1
  (row,) = json.loads(capsys.readouterr().out)["rows"]
  assert row["check"] == "failed"
  assert sum(f"gradient of {name}:" in note for note in row["notes"] for name in gradients) > 0


def test_gradients_count_three_times_the_arithmetic_and_their_own_bytes():
  plain, both = MatmulOptions(), MatmulOptions(backward=True)
  assert MATMUL.counted_flops(SHAPE, both) == 3 * MATMUL.counted_flops(SHAPE, plain)
  m, k, n = SHAPE.m, SHAPE.k, SHAPE.n
  own = MATMUL.once_through_bytes(SHAPE, "bfloat16", both) - MATMUL.once_through_bytes(
    SHAPE, "bfloat16", plain
  )
  # A, B and the result's gradient read, two gradients written
  assert own == 2 * (2 * (m * k + k * n) + m * n)


def test_the_plain_product_is_the_one_without_options():
  options = MatmulOptions(bias=True, activation="silu", batch_invariant=True)
  a, b, bias = MATMUL.operands(MatmulShape(m=33, k=40, n=50), "bfloat16", options)
  out = np.asarray(MATMUL.peer("plain", options)(a, b, bias))
  np.testing.assert_array_equal(out, np.asarray(pallas_kernels.matmul(a, b)))


def test_peers_that_lack_the_call_say_so_and_streaming_is_no_product(capsys):
  ours, mgpu, stream, plain = rows_of(
    capsys, "--task=run", f"--shape={SHAPE}", "--activation=silu", "--peers=jax_mgpu,stream,plain"
  )
  assert ours["check"] == "passed"
  assert "its product has no epilogue" in mgpu["reason"]
  assert stream["check"] == plain["check"] == "not run"
  assert any("multiplies nothing" in note for note in stream["notes"])


@pytest.mark.parametrize("fuse", ["yes", "no"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_quantising_on_the_way_or_before_is_within_the_bound(capsys, dtype, fuse):
  ours, peer = rows_of(
    capsys,
    "--task=run",
    "--kernel=quantize_matmul",
    f"--shape={SHAPE}",
    f"--code_dtype={dtype}",
    f"--fuse={fuse}",
    "--peers=xla",
  )
  assert (ours["check"], peer["check"]) == ("passed", "passed")


def test_float32_rounded_to_tf32_is_not_judged():
  operands = GATED_MATMUL.operands(SHAPE, "float32", GatedMatmulOptions())
  verdict = GATED_MATMUL.check(
    np.zeros((70, 90), np.float32),
    operands,
    GatedMatmulOptions(precision="high"),
    ran="triton",
    config=None,
    platform="gpu",
  )
  assert verdict.check == "not run"
  assert "TF32" in verdict.notes[0]


def test_plan_counts_both_products_and_the_codes(capsys):
  flags = [
    "--task=plan",
    "--tile=block_m=128,block_n=128,block_k=64,num_stages=4",
    "--profile=h200_sxm",
  ]
  (gated,) = rows_of(capsys, "--kernel=gated_matmul", *flags)
  (plain,) = rows_of(capsys, "--kernel=matmul", *flags)
  (codes,) = rows_of(capsys, "--kernel=quantized_matmul", *flags)
  m, k, n = 1024, 4096, 12288
  columns, rows = n // 128, m // 128
  assert plain["traffic_bytes"] == 2 * (m * k * columns + k * n * rows + m * n)
  assert gated["traffic_bytes"] == 2 * (m * k * columns + 2 * k * n * rows + m * n)
  assert codes["traffic_bytes"] == m * k * columns + k * n * rows + 2 * m * n
  assert gated["predicted_us"] > 1.5 * plain["predicted_us"] > 1.5 * codes["predicted_us"]
