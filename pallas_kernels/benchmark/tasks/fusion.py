"""`--task=fusion`: results from kernels cut, split and laid out differently, side by side.

Bytes and times by the models; each program is run and checked, in full and
timed beside XLA's on a GPU, its first rows in the interpreter elsewhere.
"""

import dataclasses
import io
import sys
from typing import Any

import jax
import numpy as np

import hw_profiles
from hw_profiles import GpuProfile
from pallas_kernels.benchmark import environment, jobs, runner, timing
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.flags import DEFAULT_ITERATIONS, Options
from pallas_kernels.benchmark.fusion import study
from pallas_kernels.benchmark.fusion.program import Program
from pallas_kernels.benchmark.fusion.programs import PROGRAMS
from pallas_kernels.benchmark.ops.op import Operands
from pallas_kernels.benchmark.progress import Progress, Step
from pallas_kernels.benchmark.results import Result
from pallas_kernels.benchmark.rows import Report

# Where nothing is measured and no profile is named: the device of docs/results.
_DEFAULT_PROFILE = "h200_sxm"
# Rows that are held against float64: the interpreter copies every operand at
# each program, and rows are alike.
_CHECKED_ROWS = 8
# A first guess, seconds a program.
_EXPECTED_S = 3.0


def run(options: Options) -> Report:
  """Runs every program that was asked for.

  Raises:
    UsageError: the profile is no GPU's, or a flag needs a GPU.
  """
  jobs.refuse_measuring_without_gpu(options)
  profile = _profile(options)
  chosen = [PROGRAMS[name] for name in options.programs or PROGRAMS]
  runs = options.check != "none" or runner.platform() == "gpu"
  # None where the program was started with stderr closed
  steps = [Step("program", program.name, 1.0) for program in chosen] if runs else []
  progress = Progress(steps, rates={"program": _EXPECTED_S}, stream=sys.stderr or io.StringIO())
  xla: dict[str, timing.Measurement | None] = {}
  rows = []
  for program in chosen:
    row = study.predicted(program, profile, arguments=_arguments(options, program, profile))
    if runs:
      with progress.next(), runner.exhaustion_as_memory_error():
        row = _run(options, program, row, xla)
    rows.append(row)
  return Report(
    environment=environment.describe(with_device=True),
    rows=tuple(rows),
    blocks=study.blocks(rows, profile),
    results=tuple(_result(options, row) for row in rows if row.measured is not None),
  )


def _profile(options: Options) -> GpuProfile:
  names = options.profiles or (runner.device_profile() or _DEFAULT_PROFILE,)
  found = hw_profiles.get_profile(names[0])
  if len(names) > 1 or not isinstance(found, GpuProfile):
    raise UsageError(
      f"--profile={','.join(names)}: --task=fusion is about kernels of an NVIDIA GPU; expected"
      " one of its profiles"
    )
  return found


def _arguments(options: Options, program: Program, profile: GpuProfile) -> str:
  parts = ["pallas-bench", "--task=fusion", f"'--program={program.name}'"]
  parts.append(f"--profile={profile.name}")
  if options.check != "float64":
    parts.append(f"--check={options.check}")
  if options.iterations != DEFAULT_ITERATIONS:
    parts.append(f"--iterations={options.iterations}")
  if options.cold_l2:
    parts.append("--cold_l2")
  return " ".join(parts)


def _run(
  options: Options,
  program: Program,
  row: study.StudyRow,
  xla: dict[str, timing.Measurement | None],
) -> study.StudyRow:
  """The row with what running it adds."""
  checked_rows = min(program.shape.rows, _CHECKED_ROWS)
  if runner.platform() != "gpu":
    operands = program.operands(checked_rows)
    result = runner.result(program.call("interpret"), operands)
    return _checked(program, row, result, operands, "interpret")
  operands = program.operands(program.shape.rows)
  function, arrays = timing.on_device(program.call(None), *operands)
  compiled = timing.compiled_for_device_timer(function, arrays, cold_l2=options.cold_l2)
  measured = timing.measure_compiled(
    compiled, arrays, iterations=options.iterations, cold_l2=options.cold_l2
  )
  assert measured is not None
  if program.peer_key not in xla:
    peer, arrays = timing.on_device(program.peer(), *operands)
    xla[program.peer_key] = timing.measure(
      peer, arrays, iterations=options.iterations, timer="device", cold_l2=options.cold_l2
    )
  other = xla[program.peer_key]
  analysis = compiled.memory_analysis()
  row = dataclasses.replace(
    row,
    measured=study.Measured(
      measured_us=measured.median_us,
      xla_us=None if other is None else other.median_us,
      launches=measured.launches,
      temporary_bytes=None if analysis is None else analysis.temp_size_in_bytes,
    ),
  )
  if options.check == "none":
    return row
  whole = timing.result_of(compiled, arrays, cold_l2=options.cold_l2)
  result = jax.tree.map(np.asarray, program.cut_result(whole, checked_rows))
  part = tuple(x if x is None or x.ndim == 1 else x[:checked_rows] for x in operands)
  return _checked(program, row, result, part, None)


def _checked(
  program: Program,
  row: study.StudyRow,
  result: Any,
  operands: Operands,
  implementation: str | None,
) -> study.StudyRow:
  verdict = program.check(result, operands, implementation)
  return dataclasses.replace(
    row,
    check=verdict.check,
    worst_bound_fraction=verdict.worst_bound_fraction,
    checked_with=f"{implementation or 'compiled'} on {runner.platform()}",
    notes=verdict.notes,
  )


def _result(options: Options, row: study.StudyRow) -> Result:
  """A row of a results file."""
  assert row.measured is not None
  return Result(
    kernel=study.KERNEL,
    shape=row.shape,
    dtype=row.dtype,
    options=(f"--program={row.program}",),
    tile=row.tile,
    implementation=None,
    measured_us=row.measured.measured_us,
    peers={} if row.measured.xla_us is None else {"xla": row.measured.xla_us},
    predicted_us=row.predicted_us,
    check=row.check,
    worst_bound_fraction=row.worst_bound_fraction,
    timer="device",
    iterations=options.iterations,
    cold_l2=options.cold_l2,
    arguments=row.arguments,
    details={
      "program": row.program,
      "launches": row.measured.launches,
      "temporary_bytes": row.measured.temporary_bytes,
    },
  )
