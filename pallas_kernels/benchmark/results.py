"""`--results=FILE`: measured times kept beside those that the file holds already.

    {"schema": 1, "rows": [{
      "kernel": "matmul", "shape": "m=1024,k=4096,n=12288", "dtype": "bfloat16",
      "options": ["--activation=silu"],     flags of the op, defaults left out
      "tile": "block_m=128,...", "implementation": "mosaic_gpu",
      "measured_us": 129.3,                 median of `timer`
      "peers": {"xla": 134.6},              microseconds, in the same process
      "ratios": {"xla": 1.041},             a peer's time over this one
      "predicted_us": 135.0,                the planner's estimate
      "check": "passed", "worst_bound_fraction": 0.31,
      "timer": "device", "iterations": 30, "cold_l2": false,
      "arguments": "pallas-bench ...",      the line that measures the row again
      "details": {"launches": 3},           further facts of one task, if there are any
      "environment": {"device_kind": "NVIDIA H200", "driver": ..., "date": ...}}]}

A row replaces the one of the same device and arguments, and of the same step
where a line of `--task=ladder` gives several. Each has an environment of its
own, so that a file can be added to; whatever else the file's object holds, a
note written by hand for instance, stays as it is.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pallas_kernels.benchmark import output
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.plain_values import SCHEMA, plain

_FLAG = "results"

# What a measured time depends on, of the facts in `environment.describe`.
_ENVIRONMENT = (
  "device_kind",
  "driver",
  "jax",
  "jaxlib",
  "python",
  "git_commit",
  "git_modified",
  "date",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """One measured kernel, and its peers on the same operands in the same process.

  Attributes:
    kernel: The op.
    shape: Sizes as `--shape` takes them.
    dtype: Operand dtype.
    options: The op's flags that are not at their default.
    tile: The tile as `--tile` takes it; None: the implementation has none.
    implementation: What ran.
    measured_us: Median time, microseconds.
    peers: The same of each peer, by name.
    predicted_us: The planner's estimate; None: there is none.
    check: "passed", "failed" or "not run".
    worst_bound_fraction: Largest error as a share of its element's bound; None:
      not checked.
    timer: "device" or "wall".
    iterations: Timed runs.
    cold_l2: Whether operands were out of L2 at the start of each.
    arguments: The command line that measures it again, peers included.
    details: Further facts of one task.
  """

  kernel: str
  shape: str
  dtype: str
  options: tuple[str, ...]
  tile: str | None
  implementation: str | None
  measured_us: float
  peers: Mapping[str, float]
  predicted_us: float | None
  check: str
  worst_bound_fraction: float | None
  timer: str
  iterations: int
  cold_l2: bool
  arguments: str
  details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def ratios(self) -> dict[str, float]:
    """Each peer's time over this one: above 1 this one is faster."""
    return {name: us / self.measured_us for name, us in self.peers.items()}

  def as_dict(self, environment: Mapping[str, Any]) -> dict[str, Any]:
    """The row as the file holds it."""
    fields = {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
    arguments, details = fields.pop("arguments"), fields.pop("details")
    return fields | {
      "ratios": {name: round(ratio, 4) for name, ratio in self.ratios.items()},
      "arguments": arguments,
      **({"details": details} if details else {}),
      "environment": {name: plain(environment.get(name)) for name in _ENVIRONMENT},
    }


def check(path: str) -> None:
  """Refuses a file that cannot be written or holds something else, before any work is done.

  Raises:
    UsageError: see `output.check_path`; or the file holds no results.
  """
  output.check_path(path, flag=_FLAG, elsewhere="no file")
  _read(path)


def update(path: str, environment: Mapping[str, Any], results: Iterable[Result]) -> int:
  """Adds results to the file at `path`, or makes it; how many rows it then has.

  Raises:
    UsageError: the file holds no results, or could not be written; it is untouched.
  """
  document = _read(path)
  rows = {_key(row): row for row in document["rows"]}
  rows |= {_key(row): row for row in (result.as_dict(environment) for result in results)}
  ordered = sorted(rows.values(), key=_order)
  output.write(_text(document | {"rows": ordered}), path, flag=_FLAG)
  return len(ordered)


def _read(path: str) -> dict[str, Any]:
  """The file's object; one without rows where there is no file.

  Raises:
    UsageError: it is something else.
  """
  try:
    text = pathlib.Path(path).read_text(encoding="utf-8")
  except FileNotFoundError:
    return {"schema": SCHEMA, "rows": []}
  except (OSError, UnicodeDecodeError) as error:
    raise UsageError(f"--{_FLAG}={path}: {getattr(error, 'strerror', None) or error}") from None
  try:
    document = json.loads(text)
  except ValueError as error:
    raise UsageError(f"--{_FLAG}={path}: not JSON ({error})") from None
  if not isinstance(document, dict) or document.get("schema") != SCHEMA:
    raise UsageError(
      f'--{_FLAG}={path}: holds no results of this program, expected {{"schema": {SCHEMA}, '
      '"rows": [...]}; name another file'
    )
  rows = document.get("rows")
  wanted = {"kernel", "shape", "dtype", "arguments", "environment"}
  for index, row in enumerate(rows if isinstance(rows, list) else [None]):
    if not isinstance(row, dict) or not wanted <= set(row):
      raise UsageError(
        f"--{_FLAG}={path}: row {index}: expected an object with {', '.join(sorted(wanted))}"
      )
  return document


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
  """What a row is replaced by."""
  step = row.get("details", {}).get("step", "")
  return str(row["environment"].get("device_kind")), row["arguments"], step


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
  # sizes in numerical order: 64 before 1024
  sizes = [int(size) for size in re.findall(r"\d+", row["shape"])]
  return row["kernel"], row["dtype"], row.get("options") or [], sizes, _key(row)


def _text(document: Mapping[str, Any]) -> str:
  """One row a line, so that changes are readable."""
  parts = [
    f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
    for name, value in document.items()
    if name != "rows"
  ]
  rows = ",\n".join(
    f"    {json.dumps(row, ensure_ascii=False, allow_nan=False)}" for row in document["rows"]
  )
  return "{\n" + ",\n".join([*parts, f'  "rows": [\n{rows}\n  ]']) + "\n}\n"
