"""A run with gradients: that of the result is behind it, and a default call is the default."""

import json

import jax
import pytest

import pallas_kernels
from pallas_kernels.benchmark import jobs, main, ops, runner
from pallas_kernels.benchmark.workload import Workload

ROWS = {"rows": 6, "columns": 40}
PRODUCT = {"m": 8, "k": 16, "n": 24}
SIZES = {
  "matmul": PRODUCT,
  "gated_matmul": PRODUCT,
  "swiglu": ROWS,
  "rms_norm": ROWS,
  "flash_attention": {"batch": 1, "seq_q": 8, "seq_kv": 8, "heads": 2, "head_dim": 16},
}


def workload_of(name):
  op = ops.get(name)
  options = op.options_class(backward=True)
  shape = op.shape_class(**SIZES[name])
  return Workload(op=op, shape=shape, dtype="bfloat16", options=options, tiles=None)


def barriers(equations):
  return [one for one in equations if one.primitive.name == "optimization_barrier"]


@pytest.mark.parametrize("whose", ["ours", "xla"])
@pytest.mark.parametrize("name", SIZES)
def test_the_gradient_of_the_result_is_read_once_the_result_is_there(name, whose):
  work = workload_of(name)
  op, options = work.op, work.options
  program = (
    op.call(options, config=None, implementation=None)
    if whose == "ours"
    else op.peer(whose, options)
  )
  traced = jax.make_jaxpr(program)(*op.abstract_operands(work.shape, work.dtype, options)).jaxpr
  d_out = traced.invars[-1]
  # an op may have others, of what its forward pass stored
  (barrier,) = (one for one in barriers(traced.eqns) if d_out in one.invars)
  out, last = barrier.invars
  assert last is d_out
  # the result is computed before, from the operands
  before = traced.eqns[: traced.eqns.index(barrier)]
  assert any(out in one.outvars for one in before)
  # what reads the gradient reads it from behind the result, which is that of the program
  assert not any(d_out in one.invars for one in traced.eqns if one is not barrier)
  assert any(barrier.outvars[1] in one.invars for one in traced.eqns)
  assert traced.outvars[0] is barrier.outvars[0]


@pytest.mark.parametrize("name", ["swiglu", "rms_norm"])
def test_the_streams_second_pass_is_behind_its_first(name):
  work = workload_of(name)
  op, options = work.op, work.options
  operands = op.abstract_operands(work.shape, work.dtype, options)
  traced = jax.make_jaxpr(op.peer("stream", options))(*operands).jaxpr
  (barrier,) = barriers(traced.eqns)
  # the second pass reads nothing that the first has read or made
  behind = traced.eqns[traced.eqns.index(barrier) + 1 :]
  made = {id(x) for x in barrier.outvars} | {id(x) for one in behind for x in one.outvars}
  read = {id(x) for one in behind for x in one.invars if not hasattr(x, "val")}
  assert read <= made


@pytest.mark.parametrize("asked", [None, "xla"])
@pytest.mark.parametrize("name", SIZES)
def test_a_job_calls_with_the_name_that_was_asked_for_and_with_none_otherwise(
  name, asked, monkeypatch
):
  work = workload_of(name)
  selection = runner.select(work, work.shape, None, asked)
  # here nothing compiles but XLA, and a default call takes it
  assert selection.implementation == "xla"
  job = jobs.Job(workload=work, part=work.shape, tile=None, label="", selection=selection)
  called = []
  right = getattr(pallas_kernels, name)

  def recorded(*arrays, implementation, **options):
    called.append(implementation)
    return right(*arrays, implementation=implementation, **options)

  monkeypatch.setattr(pallas_kernels, name, recorded)
  jax.eval_shape(
    jobs.function_of(job), *work.op.abstract_operands(work.shape, work.dtype, work.options)
  )
  assert called == [asked]


@pytest.mark.parametrize("flags", [[], ["--implementation=xla"]], ids=str)
def test_a_default_run_on_a_gpu_is_labelled_and_repeated_as_it_was_asked_for(
  flags, monkeypatch, capsys
):
  monkeypatch.setattr(runner, "platform", lambda: "gpu")
  monkeypatch.setattr(jobs.timing, "measure", lambda *_, **__: None)
  asked = []
  right = ops.get("rms_norm").call

  def call(options, *, config, implementation):
    asked.append(implementation)
    return right(options, config=config, implementation=implementation)

  monkeypatch.setattr(ops.get("rms_norm"), "call", call)
  arguments = ["--task=run", "--kernel=rms_norm", "--shape=rows=6,columns=40", "--backward"]
  assert main.main([*arguments, *flags, "--format=json"]) == 0
  (row,) = json.loads(capsys.readouterr().out)["rows"]
  assert set(asked) == {"xla" if flags else None}
  assert (row["implementation"], row["check"]) == ("xla", "passed")
  assert ("--implementation" in row["arguments"]) == bool(flags)
  # what computes the gradients is told
  assert any("its gradients run: xla" in note for note in row["notes"])
