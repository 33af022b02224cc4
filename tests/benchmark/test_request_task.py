"""`--task=request`: rows and tables of a whole request, and its flags."""

import csv
import io
import json
import shlex
import subprocess
import sys

import pytest

import hw_profiles
from hw_profiles import HostTimes, ModelSizes, RequestSizes
from pallas_kernels.benchmark import cells, flags, main
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.request import flag_values
from pallas_kernels.benchmark.request.workloads import workload_of

# quick to plan: small, on a device with few candidates
SMALL = (
  "--task=request",
  "--model=layers=2,hidden=256,ffn=512,heads=4,kv_heads=2,vocab=1000",
  "--request=prompt=100,output=3",
  "--profile=rtx_pro_6000",
)


def output(capsys, *arguments):
  assert main.main([*SMALL, *arguments]) == 0
  return capsys.readouterr().out


@pytest.fixture(scope="module")
def document():
  """The rows of the small request as JSON."""
  printed = io.StringIO()
  stdout, sys.stdout = sys.stdout, printed
  try:
    assert main.main([*SMALL, "--format=json"]) == 0
  finally:
    sys.stdout = stdout
  return json.loads(printed.getvalue())


def of_kind(document, kind):
  return [row for row in document["rows"] if row["kind"] == kind]


def test_rows_are_four_programs_their_stages_and_the_buckets(document):
  assert document["schema"] == 1
  assert {row["check"] for row in document["rows"]} == {"not run"}
  programs = of_kind(document, "program")
  assert [(row["program"], row["launch"]) for row in programs] == [
    ("separate", "launched"),
    ("fused", "launched"),
    ("separate", "graph"),
    ("fused", "graph"),
  ]
  launched, graph = programs[1], programs[3]
  # 7 kernels a layer, the first and the last norm (one of 2·layers + 1 is inside), the words
  assert launched["kernels"] == graph["kernels"] == 3 * (7 * 2 + 2)
  assert (launched["submissions"], graph["submissions"]) == (48, 16 + 2)
  stages = of_kind(document, "stage")
  fused = [row for row in stages if row["program"] == "fused"]
  assert [row["stage"] for row in fused if row["phase"] == "decode"] == [
    "first_norm",
    "qkv",
    "attention",
    "output",
    "norm",
    "gate_up",
    "down",
    "last_norm",
    "logits",
  ]
  assert sum(row["share"] for row in fused) == pytest.approx(1)
  assert sum(row["total_us"] for row in fused) == pytest.approx(launched["device_us"])
  (buckets,) = of_kind(document, "buckets")
  assert (buckets["tokens"], buckets["padded_tokens"], buckets["buckets"]) == (100, 128, [128])


def test_each_stage_names_the_line_whose_plan_has_its_time(document):
  """Through --task=plan's own reading of the line, not by the same call."""
  stages = [row for row in of_kind(document, "stage") if row["phase"] == "prefill"]
  for row in stages:
    program, *arguments = shlex.split(row["arguments"])
    options = flags.parse(arguments)
    assert (program, options.task, options.profiles) == ("pallas-bench", "plan", ("rtx_pro_6000",))
    (workload,) = options.workloads
    assert (workload.op.name, str(workload.shape)) == (row["kernel"], row["shape"])
    (tile,) = workload.tiles
    plan = workload.op.plan(workload.problem(), tile, "rtx_pro_6000")
    assert plan.predicted_us == row["call_us"]


def test_the_line_of_a_row_gives_it_again(document, capsys):
  launched = of_kind(document, "program")[1]
  arguments = shlex.split(launched["arguments"])[1:]
  assert main.main([*arguments, "--format=json"]) == 0
  again = json.loads(capsys.readouterr().out)
  assert again["rows"] == document["rows"]


def test_every_problem_of_a_request_is_one_of_the_command_line():
  model, request = ModelSizes(2, 256, 512, 4, 2, 64, 1000), RequestSizes(100, 3, 2)
  for fused in (True, False):
    plan = hw_profiles.plan_request(model, request, "rtx_pro_6000", fused=fused, dtype="float16")
    for planned in plan.stages:
      assert workload_of(planned.stage.problem).problem() == planned.stage.problem


def test_csv_has_all_rows_and_all_fields(capsys, document):
  rows = list(csv.DictReader(io.StringIO(output(capsys, "--format=csv"))))
  assert [row["kind"] for row in rows] == [row["kind"] for row in document["rows"]]
  assert float(rows[0]["total_us"]) == document["rows"][0]["total_us"]
  assert rows[0]["stage"] == ""


def test_table_says_what_binds_and_what_it_assumes(capsys):
  text = " ".join(output(capsys).split())
  assert "request prompt=100,output=3 of layers=2,hidden=256," in text
  for said in (
    "Stages on rtx_pro_6000",
    "prefill, with separate products",
    "Programs on rtx_pro_6000",
    "critical path of a decode step: the host (",
    "the submissions fall from 48 to 18, the kernels stay 48",
    "Prompts padded to 128, or a program for each length",
    "the host: 5 us to submit a kernel, 5 to replay a graph, 100 ms to compile",
    "not priced: looking up embeddings",
    "median error of the models against measured times: rms_norm never compared, matmul 7 %",
  ):
    assert said in text, said


def test_host_and_buckets_are_those_given(capsys):
  shown = output(capsys, "--host=launch_us=0.01,compile_ms=1", "--buckets=150,300")
  text = " ".join(shown.split())
  assert "critical path of a decode step: the device (" in text
  assert "the host: 0.01 us to submit a kernel, 5 to replay a graph, 1 ms to compile" in text
  assert "Prompts padded to 150, or" in text
  document = json.loads(
    output(capsys, "--host=launch_us=0.01,compile_ms=1", "--buckets=150,300", "--format=json")
  )
  line = of_kind(document, "buckets")[0]["arguments"]
  assert "--host=launch_us=0.01,replay_us=5,compile_ms=1 --buckets=150,300" in line


def test_small_times_keep_two_digits():
  times = (None, 0.0, 3.0, 99.0, 100.0, 12345.0, -5.0)
  assert [cells.milliseconds(us) for us in times] == [
    "-", "0.00", "0.003", "0.099", "0.10", "12.35", "-0.005",
  ]  # fmt: skip
  assert [cells.milliseconds(us, 1) for us in (79.0, 999.0, 1000.0)] == ["0.079", "1", "1.0"]


def test_markdown_is_the_same_in_pipes(capsys):
  text = output(capsys, "--format=markdown")
  assert "### Programs on rtx\\_pro\\_6000" in text
  assert "| **decode, with separate products** |" in text


def test_stages_that_do_not_fit_have_their_reason_and_no_time(capsys):
  assert (
    main.main(
      [
        "--task=request",
        "--model=layers=1,hidden=8192,ffn=64,heads=1,head_dim=8192",
        "--request=prompt=16,output=2",
        "--profile=v100_sxm2",
        "--format=json",
      ]
    )
    == 0
  )
  rows = json.loads(capsys.readouterr().out)["rows"]
  program = rows[0]
  assert (program["total_us"], program["fits"]) == (None, None)
  assert program["reason"].startswith("prefill attention: ")
  (attention,) = (
    row
    for row in rows
    if row["kind"] == "stage"
    and (row["program"], row["phase"], row["stage"]) == ("fused", "prefill", "attention")
  )
  assert attention["call_us"] is None
  assert program["reason"].endswith(attention["reason"])
  assert not of_kind({"rows": rows}, "buckets")


def test_defaults_are_the_texts_case_and_sweeps_are_written_out():
  assert flags.parse(["--task=request"]).request == flag_values.RequestOptions(
    models=(ModelSizes(layers=36, hidden=4096, ffn=12288, heads=32, kv_heads=8),),
    requests=(RequestSizes(prompt=7239, output=32),),
    dtypes=("bfloat16",),
    host=HostTimes(),
    buckets=None,
  )
  swept = flags.parse(
    ["--task=request", "--request=prompt=512:1536:512,output=2", "--request=prompt=512,output=2"]
  )
  assert [request.prompt for request in swept.request.requests] == [512, 1024, 1536]


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["--request=prompt=7239"], ["--request=prompt=7239: output missing", "prompt=7239,output=32"]),
    (["--request=prompt=0,output=1"], ["RequestSizes.prompt=0: expected an integer of at least 1"]),
    (["--model=layers=1,hidden=100,ffn=3,heads=7"], ["hidden=100 is no multiple of heads=7"]),
    (["--model=layer=1"], ["unknown name 'layer'", "did you mean 'layers'?"]),
    (["--host=launch_us=x"], ["--host=launch_us=x", "expected a number, for example 2.5"]),
    (["--host=launch_us=nan"], ["expected a number"]),
    (["--host=launch_us=1e999"], ["expected a finite number of at least 0"]),
    (["--host=launch_us=-1"], ["HostTimes.launch_us=-1.0: expected a finite number"]),
    (["--buckets="], ["--buckets: expected at least one length"]),
    (["--buckets=512,x"], ["--buckets=x: expected an integer of at least 1"]),
    (["--buckets=512"], ["--buckets=512: a prompt has 7239 tokens"]),
    (["--dtype=float8_e4m3fn"], ["--dtype=float8_e4m3fn: expected one of bfloat16"]),
    (["--kernel=matmul"], ["--kernel is not read by --task=request"]),
    (["--tile=block_m=64"], ["--tile is not read by --task=request"]),
    (["--causal"], ["--causal is not read by --task=request"]),
    (["--check=none"], ["--check is not read by --task=request"]),
  ],
)
def test_a_wrong_flag_is_told_what_would_do(arguments, words):
  with pytest.raises(UsageError) as error:
    flags.parse(["--task=request", *arguments])
  for word in words:
    assert word in str(error.value)


@pytest.mark.parametrize("flag", ["model", "request", "host", "buckets"])
def test_its_flags_are_no_other_tasks(flag):
  with pytest.raises(UsageError, match=f"--{flag} is not read by --task=plan, only by"):
    flags.parse(["--task=plan", f"--{flag}=1"])


def test_it_loads_no_jax():
  code = (
    "import sys; from pallas_kernels.benchmark import main; "
    f"assert main.main({[*SMALL, '--format=csv']!r}) == 0; "
    "print({'jax', 'numpy'} & set(sys.modules), file=sys.stderr)"
  )
  result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert result.stderr.splitlines()[-1] == "set()"
