"""`choose`: general, bucketed or specialised, by time over all calls, compiling included."""

from collections.abc import Callable, Collection, Sequence

import hw_profiles


def choose(
  calls: Sequence[tuple[int, int]],
  *,
  buckets: Sequence[int],
  run_us: Callable[[int], float],
  compile_us: float,
  repeats: int,
  cached: Collection[int] = (),
) -> hw_profiles.StrategyChoice:
  """Which strategy of `RowPrograms` takes least time, as `hw_profiles.choose_strategy` says.

      general       Σ calls·⌈rows / block⌉·run(block), one program; the block is the
                    smallest bucket
      bucketed      Σ calls·run(bucket of rows), a program for each bucket used
      specialised   Σ calls·run(rows), a program for each number of rows

  Args:
    calls: (calls, rows of each), for each kind of call of a group.
    buckets: Numbers of rows to pad to.
    run_us: Time of a program of so many rows: measured, or the planner's, for example
      `lambda m: hw_profiles.rank(MatmulProblem(m, k, n), profile)[0].predicted_us`.
    compile_us: Compiling one program.
    repeats: Groups that will come.
    cached: Rows of programs that are there already.

  Raises:
    ValueError: a count is out of range, there is no bucket, or a call has more rows than
      every one.
  """
  if not buckets:
    raise ValueError(f"buckets={buckets!r}: expected at least one, for example (256, 1024, 4096)")
  padded = hw_profiles.bucketing(calls, buckets=buckets)
  exact = hw_profiles.bucketing(calls)
  block = min(buckets)
  times = {rows: run_us(rows) for rows in sorted({block, *padded.programs, *exact.programs})}
  used = [(count, rows, bucket) for count, rows, bucket in padded.assigned if count and rows]
  run = {
    "general": sum(count * -(-rows // block) * times[block] for count, rows, _ in used),
    "bucketed": sum(count * times[bucket] for count, _, bucket in used),
    "specialised": sum(count * times[rows] for count, rows, _ in used),
  }
  programs = {
    "general": (block,) if used else (),
    "bucketed": padded.programs,
    "specialised": exact.programs,
  }
  return hw_profiles.choose_strategy(
    [
      hw_profiles.Strategy(name, run[name], {f"{rows} rows": compile_us for rows in programs[name]})
      for name in run
    ],
    repeats=repeats,
    cached=[f"{rows} rows" for rows in cached],
  )
