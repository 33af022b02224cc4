"""The command line that gives a row again."""

import shlex

from pallas_kernels.benchmark.flags import DEFAULT_ITERATIONS, Options
from pallas_kernels.benchmark.ops.op import Config, option_flags
from pallas_kernels.benchmark.workload import Workload


def rerun(
  options: Options,
  workload: Workload,
  *,
  tile: Config | None = None,
  profile: str | None = None,
  implementation: str | None = None,
  peer: str | None = None,
  check_part: str | None = None,
  data: str | None = None,
) -> str:
  """A shell line of the same task for one row.

  Everything the row depends on is written out, defaults too, except those
  flags whose default means "off".
  """
  parts = ["pallas-bench", f"--task={options.task}", f"--kernel={workload.op.name}"]
  parts += [f"--shape={workload.shape}", f"--dtype={workload.dtype}"]
  if tile is not None:
    parts.append(f"--tile={tile.describe()}")
  if profile is not None:
    parts.append(f"--profile={profile}")
  if implementation is not None:
    parts.append(f"--implementation={implementation}")
  if peer is not None:
    parts.append(f"--peers={peer}")
  parts += option_flags(workload.options)
  if options.check != "float64":
    parts.append(f"--check={options.check}")
  if data is not None:
    parts.append(f"--data={data}")
  if check_part is not None:
    parts.append(f"--check_part={check_part}")
  if options.iterations != DEFAULT_ITERATIONS:
    parts.append(f"--iterations={options.iterations}")
  if options.timer != "device":
    parts.append(f"--timer={options.timer}")
  if options.compilers:
    parts.append("--compilers")
  if options.memory:
    parts.append("--memory")
  if options.cold_l2:
    parts.append("--cold_l2")
  return shlex.join(parts)
