"""Rows of the fusion study, and the tables that are made of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import hw_profiles
from hw_profiles import GpuProfile
from pallas_kernels.benchmark import cells
from pallas_kernels.benchmark.fusion import chain, norm, transposes
from pallas_kernels.benchmark.fusion.program import Program
from pallas_kernels.benchmark.rows import NOT_RUN, Block, Written

# What its rows are called in a results file.
KERNEL = "fusion"
NOT_MEASURED = "not measured"

# The course's row: two blocks of 128 that begin with 1 and 10.
_ROW, _BLOCK = {0: 1.0, 128: 10.0}, 128
_SCALES: tuple[Literal["row", "first_block", "running"], ...] = ("row", "first_block", "running")
# Problems that the model is asked to split.
_SPLIT_PROBLEMS = ((1, 4096), (1024, 4096), (1, 65536), (1, 1048576), (1, 4194304), (64, 1048576))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
  """What a GPU adds to a row.

  Attributes:
    measured_us: Median device time, kernels of a call added up.
    xla_us: The same of XLA's program; None: it did not run.
    launches: Kernels of a call, as they were seen.
    temporary_bytes: Buffers between kernels, by XLA's memory analysis.
  """

  measured_us: float
  xla_us: float | None
  launches: int | None
  temporary_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyRow(Written):
  """One program.

  Attributes:
    program: What `--program` calls it.
    study: What it is compared within.
    variant: Which way it is.
    shape: The problem.
    dtype: Operand dtype.
    tile: The tile of its kernels; None: the planner's.
    launches: Steps that wait for each other.
    kernels: Kernels of the library for them.
    traffic_bytes: Bytes between the working buffers and the next tier.
    peak_bytes: Most bytes in memory at once, where the model has them.
    profile: Hardware profile of the predicted time.
    predicted_us: Estimated time, gaps between launches included.
    bound: What sets it.
    measured: What a GPU adds; None: there was none.
    check: "passed", "failed" or "not run".
    worst_bound_fraction: Largest error as a share of its element's bound.
    checked_with: What ran, and where.
    notes: Where a check failed; why it did not run.
    arguments: The command line that gives the row again.
  """

  program: str
  study: str
  variant: str
  shape: str
  dtype: str
  tile: str | None
  launches: int
  kernels: int
  traffic_bytes: int
  peak_bytes: int | None
  profile: str
  predicted_us: float | None
  bound: str | None
  measured: Measured | None = None
  check: str = NOT_RUN
  worst_bound_fraction: float | None = None
  checked_with: str | None = None
  notes: tuple[str, ...] = ()
  arguments: str = ""

  def as_dict(self) -> dict[str, Any]:
    """The row as JSON holds it; what was measured stands among the rest."""
    fields = super().as_dict()
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Measured))
    measured = fields.pop("measured") or nothing
    counted = measured.pop("launches")
    return fields | measured | {"measured_launches": counted}


def predicted(program: Program, profile: GpuProfile, **fields: Any) -> StudyRow:
  """The row of a program that has not run."""
  predicted_us, bound = program.predict(profile)
  return StudyRow(
    program=program.name,
    study=program.study,
    variant=program.variant,
    shape=str(program.shape),
    dtype=program.dtype,
    tile=None if program.tile is None else program.tile.describe(),
    launches=program.launches,
    kernels=program.kernels,
    traffic_bytes=program.traffic_bytes,
    peak_bytes=program.peak_bytes,
    profile=profile.name,
    predicted_us=predicted_us,
    bound=bound,
    **fields,
  )


def blocks(
  rows: Sequence[StudyRow], profile: GpuProfile, *, counted: Mapping[str, float] | None = None
) -> tuple[Block, ...]:
  """The tables of the studies that rows are of.

  Args:
    rows: Of any studies.
    profile: What they were predicted for.
    counted: Ways that a profiler counted, by `transposes.Banks.name`.
  """
  by_study: dict[str, list[StudyRow]] = {}
  for row in rows:
    by_study.setdefault(row.study, []).append(row)
  makers = {"chain": _chain, "rms_norm": _rms_norm, "transpose": _transpose}
  found: list[Block] = []
  for study, members in by_study.items():
    found += makers[study](members, profile)
    if study == "transpose":
      found.append(_banks(counted or {}))
  return tuple(found)


def _measured(row: StudyRow) -> tuple[str, ...]:
  """The cells of `_MEASURED`."""
  if row.measured is None:
    return NOT_MEASURED, NOT_MEASURED, row.check
  return cells.number(row.measured.measured_us), cells.number(row.measured.xla_us), row.check


_MEASURED = ("measured us", "XLA us", "check")
_NUMERIC = frozenset(
  {
    "counted",
    "launches",
    "kernels here",
    "traffic MiB",
    "peak MiB",
    "temporaries MiB",
    "segments",
    "predicted us",
    "shared bytes",
    "column read, ways",
    *_MEASURED[:2],
  }
)


def _mib(size_bytes: int | None) -> str:
  return "-" if size_bytes is None else cells.mib_exact(size_bytes)


def _notes(rows: Sequence[StudyRow]) -> tuple[str, ...]:
  return tuple(f"{row.program}: {note}" for row in rows for note in row.notes)


def _chain(rows: Sequence[StudyRow], profile: GpuProfile) -> tuple[Block, ...]:
  labels = {row.program: row.variant for row in rows}
  return (
    Block(
      title=(
        f"Activation chain, G and U {chain.CHAIN.tensor('G').shape} {chain.DTYPE}, codes"
        f" {chain.CODES} at a fixed scale"
      ),
      header=(
        "kernels",
        "launches",
        "traffic MiB",
        "peak MiB",
        "temporaries MiB",
        "predicted us",
        "bound",
        *_MEASURED,
      ),
      cells=tuple(
        (
          labels[row.program],
          str(row.launches),
          _mib(row.traffic_bytes),
          _mib(row.peak_bytes),
          NOT_MEASURED if row.measured is None else _mib(row.measured.temporary_bytes),
          cells.number(row.predicted_us),
          row.bound or "-",
          *_measured(row),
        )
        for row in rows
      ),
      numeric=_NUMERIC,
      lines=(
        "1 is T = silu(G), 2 is Z = T·U, 3 is the codes of Z; a bar is where one kernel ends and"
        " the next begins. T and Z are rounded to the operands' dtype whether they are stored or"
        " not, so that all four give the same bits, and the check asks for them.",
        "swiglu_quantize is the library's op: one kernel, Z in float32 until it is a code.",
        "traffic: each kernel reads what it needs once and writes what others need once. peak: a"
        " kernel's result is allocated, then what no later kernel reads is freed. temporaries: the"
        " buffers that XLA's memory analysis adds to the operands and the result, which it keeps.",
        "predicted: with the gap between two launches; measured: the kernels' times added up, gaps"
        " not in them. XLA: the same roundings in jax.numpy, with barriers where the kernels end.",
        *_notes(rows),
      ),
    ),
    _row_scales(),
  )


def _row_scales() -> Block:
  """Why a scale for each row cannot be had in one pass that stores codes as it goes."""
  import numpy as np

  from reference import block_codes

  row = np.zeros(2 * _BLOCK, np.float32)
  row[list(_ROW)] = list(_ROW.values())
  exact = block_codes(row, block=_BLOCK, scale="row")
  shown = [
    (
      scale.replace("_", " "),
      f"{row[index]:g}",
      f"{found.scale[index // _BLOCK]:.6f}",
      f"{float(found.codes[index]):g}",
      f"{found.values[index]:.6f}",
      f"{found.values[index] - exact.values[index]:+.6f}",
    )
    for scale in _SCALES
    for found in (block_codes(row, block=_BLOCK, scale=scale),)
    for index in _ROW
  ]
  return Block(
    title="A scale for each row has to have seen the row",
    header=("largest value of", "x", "scale", "code", "code·scale", "against the row's"),
    cells=tuple(shown),
    numeric=frozenset({"x", "scale", "code", "code·scale", "against the row's"}),
    lines=(
      "A row of two blocks that begin with 1 and 10, in e4m3. The row's scale makes 1 a 44, which"
      " is 55/56; the first block's own makes it a 448, which is 1. The difference of 1/56 cannot"
      " be repaired once the code is stored: read with the scale that the row ends with, that 448"
      " is a 10. So swiglu_quantize and quantize_rows keep a row on chip until its largest value"
      " is known, and a fixed scale is what lets the chain above run in one pass of any order.",
    ),
  )


def _rms_norm(rows: Sequence[StudyRow], profile: GpuProfile) -> tuple[Block, ...]:
  splits = ", ".join(
    f"{count} x {columns}: "
    f"{hw_profiles.best_num_splits(hw_profiles.RmsNormProblem(count, columns), profile)}"
    for count, columns in _SPLIT_PROBLEMS
  )
  return (
    Block(
      title=f"RMSNorm in segments, {norm.DTYPE}",
      header=(
        "problem",
        "segments",
        "launches",
        "kernels here",
        "traffic MiB",
        "predicted us",
        "bound",
        *_MEASURED,
      ),
      cells=tuple(
        (
          row.shape,
          row.variant.rpartition("/")[2],
          str(row.launches),
          str(row.kernels),
          _mib(row.traffic_bytes),
          cells.number(row.predicted_us),
          row.bound or "-",
          *_measured(row),
        )
        for row in rows
      ),
      numeric=_NUMERIC,
      lines=(
        "One segment: a program keeps its row, one launch. More: partial sums of squares, their"
        " merge in order, the result, and a second read of x; predicted as three launches. The"
        " kernel here has two: a program that writes a segment first merges its row's partial sums"
        " itself. traffic counts the weight once for each row, and a row's scale once for each"
        " segment that reads it.",
        f"Segments that the model chooses on {profile.name} (rows x columns): {splits}. Rows that"
        " fill the device by themselves gain nothing from a split.",
        *_notes(rows),
      ),
    ),
  )


def _transpose(rows: Sequence[StudyRow], profile: GpuProfile) -> tuple[Block, ...]:
  return (
    Block(
      title=f"Transpose in blocks, {rows[0].shape} {transposes.DTYPE}",
      header=("block", "traffic MiB", "predicted us", "bound", *_MEASURED),
      cells=tuple(
        (
          row.variant,
          _mib(row.traffic_bytes),
          cells.number(row.predicted_us),
          row.bound or "-",
          *_measured(row),
        )
        for row in rows
      ),
      numeric=_NUMERIC,
      lines=(
        "predicted with a padded block; the kernel leaves the layout in shared memory to Triton.",
        *_notes(rows),
      ),
    ),
  )


def _banks(counted: Mapping[str, float]) -> Block:
  def count(one: transposes.Banks) -> tuple[str, ...]:
    return (f"{counted[one.name]:g}" if one.name in counted else NOT_MEASURED,) if counted else ()

  return Block(
    title="A block in shared memory",
    header=(
      *("block", "dtype", "layout", "shared bytes", "column read, ways"),
      *(("counted",) if counted else ()),
    ),
    cells=tuple(
      (
        f"{one.side}x{one.side}",
        one.dtype,
        one.layout,
        str(one.shared_bytes),
        f"{one.column_ways:g}",
        *count(one),
      )
      for one in transposes.banks()
    ),
    numeric=_NUMERIC,
    lines=(
      "ways: passes of a warp that reads the block by columns, an element a lane, over those"
      " without a conflict. padded: a word after each row. swizzled: 16-byte chunks exchanged by"
      " the row's number, which wants rows of whole 128 B and no byte more.",
      *(
        ("counted: passes over warp instructions, by ncu on a kernel that lays the block out so.",)
        if counted
        else ()
      ),
    ),
  )


def measured_of(kept: Mapping[str, Any]) -> Measured:
  """What a GPU added, from a row of a results file."""
  details = kept.get("details", {})
  return Measured(
    measured_us=kept["measured_us"],
    xla_us=kept["peers"].get("xla"),
    launches=details.get("launches"),
    temporary_bytes=details.get("temporary_bytes"),
  )
