"""The command line as a whole: what it means, and what a wrong one is told."""

import re

import pytest

import hw_profiles
import pallas_kernels
from hw_profiles import MatmulConfig
from pallas_kernels.benchmark import flags, main, ops
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.ops.matmul import MatmulOptions, MatmulShape


def test_no_flags_is_the_default_problem():
  options = flags.parse([])
  assert options.task == "compare"
  (workload,) = options.workloads
  assert workload.op.name == "matmul"
  assert workload.shape == MatmulShape(m=1024, k=4096, n=12288)
  assert workload.dtype == "bfloat16"
  assert workload.options == MatmulOptions()
  assert workload.tiles is None
  assert options.profiles is None
  assert options.check == "float64"
  assert options.format == "table"


def test_repeated_and_swept_shapes_and_tiles_are_written_out_once():
  options = flags.parse(
    [
      "--shape=m=1:2:1,k=3,n=4",
      "--shape=m=2,k=3,n=4",
      "--tile=block_m=64,block_n=64,block_k=32:64:32",
      "--tile",
      "block_m=64,block_n=64,block_k=32",
    ]
  )
  assert [workload.shape for workload in options.workloads] == [
    MatmulShape(m=1, k=3, n=4),
    MatmulShape(m=2, k=3, n=4),
  ]
  for workload in options.workloads:
    assert workload.tiles == (MatmulConfig(64, 64, 32), MatmulConfig(64, 64, 64))


def test_profiles_are_known_by_their_aliases():
  assert flags.parse(["--profile=H100,910b3,h100_sxm"]).profiles == ("h100_sxm", "ascend_910b3")


@pytest.mark.parametrize("task", ["compare", "run", "plan"])
def test_kernel_all_is_every_kernel_of_the_task(task):
  workloads = flags.parse([f"--task={task}", "--kernel=all"]).workloads
  chosen = tuple(workload.op.name for workload in workloads)
  assert chosen == tuple(name for name in ops.names() if task in ops.get(name).tasks)
  assert {"matmul", "gated_matmul", "quantized_matmul"} <= set(chosen)
  if task == "plan":
    assert chosen == tuple(name for name in ops.names() if name not in ops.COMPOSED)


def test_profile_all_is_every_profile():
  assert flags.parse(["--task=plan", "--profile=all"]).profiles == hw_profiles.list_profiles()


def test_two_command_lines_do_not_share_state():
  (first,) = flags.parse(["--dtype=float32", "--bias"]).workloads
  assert first.options.bias
  (again,) = flags.parse([]).workloads
  assert again.dtype == "bfloat16"
  assert not again.options.bias


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["--shap=m=1,k=1,n=1"], ["--shap", "shape"]),
    (["--task=numbers"], ["--task=numbers", "compare, run, plan, "]),
    (["--task=comparr"], ["--task=", "did you mean 'compare'?"]),
    (["--kernel=matmull"], ["--kernel=matmull", "did you mean 'matmul'?"]),
    (
      ["--kernel=quantize_matmul"],
      [
        "planner takes it as quantize_rows followed by quantized_matmul",
        "of --task=run or numerics alone",
      ],
    ),
    (["--kernel="], ["--kernel", "expected at least one of matmul"]),
    (["--dtype=bf16"], ["--dtype=bf16", "bfloat16, float16, float32"]),
    (["--out_dtype=int3"], ["--out_dtype=int3"]),
    (["--intermediate_dtype=f32"], ["--intermediate_dtype=f32", "float32"]),
    (["--profile=h10_sxm"], ["--profile=h10_sxm", "h100_sxm"]),
    (["--implementation=tritn"], ["--implementation=tritn", "did you mean 'triton'?"]),
    (["--task=run", "--peers=cublas"], ["--peers=cublas", "xla"]),
    (["--check=float32"], ["--check=float32", "float64, none"]),
    (["--timer=cpu"], ["--timer=cpu", "device, wall"]),
    (["--format=xml"], ["--format=xml", "table, json, csv, markdown"]),
    (["--iterations=0"], ["--iterations=0: expected an integer of at least 1"]),
    (["--iterations=abc"], ["--iterations=abc: expected an integer of at least 1"]),
    (["--iterations=５"], ["--iterations=５: expected an integer of at least 1"]),
    (["--profile="], ["--profile", "expected at least one of", "h100_sxm"]),
    (["--task=run", "--peers="], ["--peers", "expected at least one of xla"]),
    (["--output="], ["--output=: expected a file"]),
    (["--output=-"], ["--output=-: stdout is the default"]),
    (["--check_part=half"], ["--check_part=half", "all, sample"]),
    (["--task=run", "--check_part=all"], ["--check_part is not read by --task=run"]),
    (["--activation=gelu"], ["--activation=gelu", "silu"]),
    (["--bias=maybe"], ["--bias=maybe: expected true or false, or no value"]),
    (["--precision=tf32"], ["--precision=tf32", "default, high, highest"]),
    (["compare"], ["'compare' is not a flag; every option is --name=value", "--noname"]),
    (["--batch-invariant"], ["unknown flag '--batch-invariant'; did you mean --batch_invariant?"]),
    (["--nobatch-invariant"], ["did you mean --batch_invariant?"]),
    (["--shape=m=1,k=1"], ["--shape=m=1,k=1", "n missing"]),
    (["--tile=block_m=64"], ["--tile=block_m=64", "block_n, block_k missing"]),
    (["--peers=xla"], ["--peers is not read by --task=compare, only by --task=run"]),
    (
      ["--task=ladder", "--kernel=flash_attention,matmul"],
      [
        "--kernel=flash_attention: only --task=compare, run, plan, numerics, mlir, ascend or port",
        "ladder has matmul",
      ],
    ),
    (
      ["--kernel=flash_attention", "--backward"],
      ["--backward is not read by --task=compare", "only by --task=plan, run and numerics"],
    ),
    (
      [
        "--task=plan",
        "--kernel=flash_attention",
        "--causal",
        "--shape=batch=1,seq_q=1,seq_kv=2,heads=1",
      ],
      ["--shape=batch=1,seq_q=1,seq_kv=2,heads=1", "'bottom_right'"],
    ),
    (
      [
        "--task=plan",
        "--kernel=flash_attention",
        "--shape=batch=1,seq_q=8,seq_kv=8,heads=6,kv_heads=4",
      ],
      ["kv_heads=4", "a divisor of heads=6"],
    ),
    (
      ["--task=plan", "--kernel=flash_attention", "--window=5"],
      ["--window=5", "for example 1023:0"],
    ),
    (
      ["--task=plan", "--kernel=decode_attention", "--page_size=0"],
      ["page_size=0", "at least 1"],
    ),
    (
      ["--task=run", "--kernel=flash_attention", "--dtype=float8_e4m3fn"],
      [
        "--dtype=float8_e4m3fn: flash_attention is planned with it, no kernel takes it",
        "--task=run has bfloat16, float16, float32",
      ],
    ),
    (["--task=examples", "--kernel=matmul"], ["--kernel is not read by --task=examples"]),
    (["--task=examples", "--profile=h100"], ["--profile is not read by --task=examples"]),
    (["--task=examples", "--bias"], ["--bias is not read by --task=examples"]),
    (["--task=plan", "--iterations=5"], ["only by --task=compare, run, tune, ladder and fusion"]),
    (["--task=plan", "--implementation=xla"], ["--implementation is not read by --task=plan"]),
    (["--task=plan", "--nobatch_invariant"], ["--batch_invariant is not read by --task=plan"]),
    (["--task=plan", "--precision=high"], ["--precision is not read by --task=plan"]),
    (["--output=/"], ["--output=/", "is a folder"]),
  ],
)
def test_wrong_command_line_is_told_which_flag_and_what_would_do(arguments, words, capsys):
  with pytest.raises(UsageError) as error:
    flags.parse(arguments)
  for word in words:
    assert word in str(error.value)
  assert main.main(arguments) == 2
  captured = capsys.readouterr()
  assert captured.out == ""
  assert captured.err == f"pallas-bench: {error.value}\n"


@pytest.mark.parametrize("argument", ["--activation=gelu", "--dtype=float8_e4m3fn"])
def test_another_thing_is_no_slip_of_the_fingers(argument):
  with pytest.raises(UsageError) as error:
    flags.parse([argument])
  assert "did you mean" not in str(error.value)


def test_help_lists_the_profiles_and_the_fields_of_a_tile(capsys):
  assert main.main(["--help"]) == 0
  text = " ".join(capsys.readouterr().out.split())
  assert ", ".join(hw_profiles.list_profiles()) in text
  assert "block_m, block_n, block_k, num_stages=2, group_m=8, accumulator=registers" in text
  assert "num_warps=none" in text


def test_every_public_op_has_a_name_or_the_ops_that_it_is_planned_as():
  config_or_answer = {"explain"} | {name for name in pallas_kernels.__all__ if name[0].isupper()}
  public = set(pallas_kernels.__all__) - config_or_answer
  assert public == set(ops.names()) >= set(ops.COMPOSED)
  assert {step for steps in ops.COMPOSED.values() for step in steps} <= set(ops.names())


def test_help_lists_sizes_that_may_be_left_out_and_words_of_a_tile(capsys):
  assert main.main(["--help"]) == 0
  text = " ".join(capsys.readouterr().out.split())
  assert "quantize_matmul: m, k, n, [batch];" in text
  assert "heads, [kv_heads], [head_dim=128], [value_dim];" in text
  assert "accumulator=registers|shared" in text
  assert "layout=padded|swizzled|plain" in text


def test_help_says_which_dtypes_are_planned_only(capsys):
  assert main.main(["--help"]) == 0
  text = " ".join(capsys.readouterr().out.split())
  planned = "float32, float8_e4m3fn (planned only, no kernel takes it)."
  assert f"flash_attention: bfloat16, float16, {planned}" in text
  assert text.count("planned only") == 1


def test_help_says_what_several_ops_take_once(capsys):
  assert main.main(["--help"]) == 0
  text = " ".join(capsys.readouterr().out.split())
  gemms = "matmul, gated_matmul, quantized_matmul, quantize_matmul"
  for said in (
    f"{gemms}: m=1024,k=4096,n=12288",
    f"{gemms}: m, k, n, [batch]",
    f"{gemms}: block_m",
  ):
    assert text.count(said) == 1
  # of the fields with their defaults, not of the example
  assert text.count("num_consumer_warpgroups=none") == 2
  assert text.count("num_writers=1") == 1


def test_help_names_every_flag_and_no_task_that_is_not_there(capsys):
  assert main.main(["--help"]) == 0
  text = capsys.readouterr().out
  for name in ("task", "kernel", "shape", "dtype", "tile", "profile", "implementation", "peers"):
    assert f"--{name}" in text
  assert set(re.findall(r"--task=([a-z]+)", text)) == set(flags.TASKS)
