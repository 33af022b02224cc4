"""In how many segments a row is best reduced."""

from hw_profiles.planner.plan import Schedule
from hw_profiles.planner.ranking import rank
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.registry import resolve
from hw_profiles.rowwise import vector
from hw_profiles.rowwise.problem import RmsNormProblem, RowProblem
from hw_profiles.rowwise.streams import row_op
from hw_profiles.rowwise.tiling import num_splits


def best_num_splits(
  problem: RowProblem,
  profile: str | GpuProfile | NpuProfile,
  *,
  schedule: Schedule = "auto",
) -> int:
  """Segments a row of the fastest plan; what the problem fixes, if it does.

  One program a row leaves most cores idle where there are few rows; a split
  gives each row to several, for two more launches and a second read of the row.
  It pays for few and very long rows only: on an H200, one row of 4096 takes one
  launch, one row of four million a split.

  The number moves the bits of a sum. It is chosen by the rows, so a caller who
  wants a row's bits to be the same in every batch fixes it.

  Args:
    problem: Of an op that reduces rows: rms_norm, quantize_rows, or
      swiglu_quantize with row scales.
    profile: A profile or its name.
    schedule: As for `plan`; "auto" on Ascend is "vector", as a split is three
      kernels, which are not compiled as one.

  Raises:
    ValueError: the op reduces nothing, no tile of it fits, or there is no such
      profile or schedule.
  """
  if not isinstance(problem, RowProblem) or not row_op(problem).statistics:
    raise ValueError(f"problem={problem!r}: expected the problem of an op that reduces rows")
  if isinstance(problem, RmsNormProblem) and problem.num_splits is not None:
    return problem.num_splits
  if schedule == "auto" and isinstance(resolve(profile), NpuProfile):
    schedule = vector.NAME
  best = rank(problem, profile, top=1, schedule=schedule)
  if not best or not best[0].fits:
    raise ValueError(f"problem={problem!r}: no tile of it fits {profile!r}")
  return num_splits(problem, best[0].config)
