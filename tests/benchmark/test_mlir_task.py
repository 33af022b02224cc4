"""`--task=mlir`: stages of either vendor, printed, written or in JSON."""

import json
import pathlib

import jax
import pytest

from hw_profiles.ascend import why_missing
from pallas_kernels.benchmark import compiling, flags, lowered, main, stages
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.lowering import OPS, SUPPORTED_JAX
from pallas_kernels.lowering.compile_task import compile_task

_SHAPE = "--shape=m=256,k=128,n=256"
_TILE = "--tile=block_m=64,block_n=64,block_k=64"
_TRITON = pytest.mark.skipif(
  jax.__version__ not in SUPPORTED_JAX, reason="no Triton IR with this JAX"
)


def _rows(capsys, *arguments):
  assert main.main(["--task=mlir", "--format=json", *arguments]) == 0
  return json.loads(capsys.readouterr().out)["rows"]


def test_ops_of_the_compiler_tasks_are_those_that_are_lowered():
  assert set(lowered.OPS) == set(OPS)


def test_stages_of_the_hopper_kernel(capsys):
  (row,) = _rows(capsys, _SHAPE, _TILE, "--profile=h200_sxm")
  assert row["outcome"] == "accepted"
  assert list(row["stages"]) == ["mosaic_gpu", "layouts", "lowered"]
  assert "wgmma.mma_async" in row["stages"]["lowered"]
  assert row["operations"]["wgmmas"] == {"m64n64k16": 4}
  assert row["operations"]["shared_bytes"] > 0
  assert "--task=mlir" in row["arguments"]


def test_table_has_the_text_first_and_the_summary_last(capsys, compiles_here):
  arguments = [_SHAPE, _TILE, "--profile=h200_sxm", "--stage=mosaic_gpu"]
  assert main.main(["--task=mlir", *arguments]) == 0
  captured = capsys.readouterr()
  text, summary = captured.out.split("What was lowered")
  assert "mosaic_gpu.wgmma" in text
  assert "gpu.launch" in text
  assert "wgmma 4 x m64n64k16; TMA copies 2 in" in summary
  assert "1 lowerings" in captured.err


def test_folder_takes_a_file_a_stage(capsys, tmp_path, compiles_here):
  folder = tmp_path / "stages"
  (row,) = _rows(capsys, _SHAPE, _TILE, "--profile=h200_sxm", f"--folder={folder}")
  assert sorted(row["stages"].values()) == sorted(map(str, folder.iterdir()))
  assert all(path.endswith(".mlir") for path in row["stages"].values())
  assert "wgmma.mma_async" in pathlib.Path(row["stages"]["lowered"]).read_text()


@pytest.mark.skipif(not why_missing(), reason="the compilers are installed here")
def test_missing_compilers_are_a_sentence_with_the_way_to_install_them(capsys, compiles_here):
  (row,) = _rows(capsys, _SHAPE, _TILE, "--profile=ascend_910b3")
  assert row["outcome"] == "not available"
  assert 'pip install "pallas-kernels[ascend]"' in row["reason"]
  assert row["stages"] == {}


def test_compare_shows_what_the_compilers_allocate_where_asked(capsys, compiles_here):
  arguments = ["--task=compare", "--compilers", "--check=none", _SHAPE, _TILE, "--format=json"]
  assert main.main([*arguments, "--profile=h200_sxm,rtx_pro_6000"]) == 0
  hopper, other = json.loads(capsys.readouterr().out)["rows"]
  assert hopper["compiler_outcome"] == "accepted"
  (shared, _) = hopper["memories"]
  # two stages of A, B and two barriers each; two slots of the epilogue
  needed = 2 * (2 * 64 * 64 * 2 + 2 * 8) + 2 * 64 * 64 * 2
  assert shared["compiler_bytes"] == shared["model_bytes"] == needed
  assert shared["difference_bytes"] == 0
  assert "--compilers" in hopper["arguments"]
  assert "memories" not in other
  assert main.main([*arguments[:-1], "--profile=h200_sxm"]) == 0
  assert "planner, bytes" in capsys.readouterr().out


def test_unknown_stage_is_named_with_those_there_are(capsys):
  assert main.main(["--task=mlir", _SHAPE, _TILE, "--profile=h200_sxm", "--stage=sass"]) == 2
  said = capsys.readouterr().err
  assert "--stage=sass: expected one of mosaic_gpu, layouts, lowered" in said
  assert "lowerings" not in said  # before any work


@pytest.mark.parametrize("stage", ["linalg", "hivm", "simplified"])
def test_stage_of_the_other_vendor_is_told_with_what_would_make_it(stage, capsys):
  assert main.main(["--task=mlir", _SHAPE, _TILE, "--profile=h200_sxm", f"--stage={stage}"]) == 2
  said = capsys.readouterr().err
  assert f"--stage={stage}: a stage of the Ascend route" in said
  assert "with mosaic_gpu, layouts, lowered" in said
  assert "--profile=ascend_910b3" in said
  assert why_missing() in said
  assert "lowerings" not in said


@pytest.mark.skipif(not why_missing(), reason="the compilers are installed here")
def test_stage_whose_compilers_are_missing_is_told_beside_the_other_vendor(capsys, compiles_here):
  arguments = [_SHAPE, _TILE, "--profile=h200_sxm,ascend_910b3", "--stage=linalg"]
  assert main.main(["--task=mlir", *arguments]) == 0
  text = " ".join(capsys.readouterr().out.split())
  assert "--stage=linalg: of the Ascend route, not made here: ascendnpu-ir is not" in text
  assert ".venv-ascend/bin/pallas-bench" in text


@_TRITON
def test_triton_is_every_triton_kernel_of_a_tile(capsys, compiles_here):
  (row,) = _rows(
    capsys,
    "--kernel=rms_norm",
    "--shape=rows=16,columns=512",
    "--tile=block_rows=1,block_cols=128,num_splits=2",
    "--profile=rtx_pro_6000",
    "--stage=triton",
  )
  assert [name.split()[:2] for name in row["stages"]] == [["triton", "1"], ["triton", "2"]]


@pytest.mark.parametrize(
  ("route", "profile"),
  [("Mosaic GPU", "h200_sxm"), pytest.param("Triton IR", "rtx_pro_6000", marks=_TRITON)],
)
def test_names_of_stages_are_those_that_lowering_gives(route, profile):
  options = flags.parse(["--task=mlir", _SHAPE, _TILE])
  (workload,) = options.workloads
  task = compiling.task(options, workload, workload.tiles[0], profile, texts=True)
  assert stages.route(task) == route
  assert tuple(compile_task(task).stages) == stages.ROUTES[route]


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--shape=m=8,k=8,n=8,batch=2"], "batch"),
    (["--kernel=rms_norm", "--residual"], "--residual=True: rms_norm is not lowered with it"),
    (["--kernel=quantized_matmul"], "quantized_matmul: only --task="),
    (["--task=compare", "--kernel=quantized_matmul", "--compilers"], "no compiler is given it"),
    (["--folder=/dev/null"], "--folder=/dev/null: is no folder"),
    (["--folder=/nowhere/at/all"], "does not exist"),
    (["--time_limit=0"], "--time_limit=0"),
    (["--jobs=none"], "--jobs=none"),
  ],
)
def test_what_cannot_be_lowered_is_refused_before_any_work(arguments, message):
  with pytest.raises(UsageError, match=message):
    flags.parse(["--task=mlir", *arguments])


def test_sizes_and_options_have_lowering_s_names():
  options = flags.parse(
    [
      "--task=mlir",
      "--kernel=flash_attention",
      "--shape=batch=1,seq_q=64,seq_kv=64,heads=4,head_dim=64",
      "--causal",
    ]
  )
  sizes, chosen = lowered.arguments(options.workloads[0])
  assert dict(sizes) == {
    "batch": 1,
    "seq_q": 64,
    "seq_kv": 64,
    "heads": 4,
    "kv_heads": 4,
    "head_dim": 64,
  }
  assert dict(chosen) == {"is_causal": True}


@pytest.mark.skipif(not why_missing(), reason="the compilers are installed here")
@pytest.mark.parametrize("task", ["mlir", "ascend"])
def test_missing_compilers_are_an_answer_with_status_0_as_the_help_says(task, capsys, request):
  if task == "ascend":
    request.getfixturevalue("compiles_here")
  assert main.main([f"--task={task}", _SHAPE, _TILE, "--profile=ascend_910b3"]) == 0
  assert "not available" in capsys.readouterr().out
  assert main.main(["--help"]) == 0
  assert 'outcome "not available"' in capsys.readouterr().out
