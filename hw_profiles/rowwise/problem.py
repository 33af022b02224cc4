"""What the row-wise ops compute: sizes and dtypes, without arrays.

Leading dimensions are rows: a [batch, tokens, hidden] array has batch·tokens.
"""

import dataclasses
from typing import ClassVar

from hw_profiles import dtypes
from hw_profiles.arguments import whole_field

FLOAT_DTYPES = ("bfloat16", "float16", "float32")
QUANTIZED_DTYPES = ("float8_e4m3fn", "int8")


def _check_dtype(owner: str, name: str, value: object, known: tuple[str, ...]) -> None:
  if value not in known:
    raise ValueError(f"{owner}.{name}={value!r}: expected one of {', '.join(known)}")


@dataclasses.dataclass(frozen=True)
class RowProblem:
  """What the row-wise problems have in common.

  Attributes:
    rows: Rows, leading dimensions folded in.
    columns: Elements of a row.
    dtype: Of the operands: "bfloat16", "float16" or "float32".
    out_dtype: Of the result; None: `dtype`.
    warm_l2: Whether the launch before left the operands in L2. They count as
      there only where they fit half of it and the results the other half.
  """

  out_dtypes: ClassVar[tuple[str, ...]] = FLOAT_DTYPES

  rows: int
  columns: int
  dtype: str = "bfloat16"
  out_dtype: str | None = None
  warm_l2: bool = dataclasses.field(default=False, kw_only=True)

  def __post_init__(self) -> None:
    owner = type(self).__name__
    for name in ("rows", "columns"):
      whole_field(self, name, 0)
    for field in dataclasses.fields(self):
      if field.type in (bool, "bool") and not isinstance(getattr(self, field.name), bool):
        value = getattr(self, field.name)
        raise ValueError(f"{owner}.{field.name}={value!r}: expected True or False")
    _check_dtype(owner, "dtype", self.dtype, FLOAT_DTYPES)
    if self.out_dtype is not None:
      _check_dtype(owner, "out_dtype", self.out_dtype, self.out_dtypes)

  @property
  def result_dtype(self) -> str:
    """The dtype the result is stored in."""
    return self.dtype if self.out_dtype is None else self.out_dtype

  @property
  def is_quantized(self) -> bool:
    """Whether the result has codes and a scale for each row."""
    return self.result_dtype in QUANTIZED_DTYPES

  @property
  def elements(self) -> int:
    """rows·columns."""
    return self.rows * self.columns


@dataclasses.dataclass(frozen=True)
class SwigluProblem(RowProblem):
  """Z = silu(gate)·up, all of rows x columns."""


@dataclasses.dataclass(frozen=True)
class QuantizeRowsProblem(RowProblem):
  """q = round(x / s) with s = amax of the row / largest code; see `RowProblem`.

  Attributes:
    out_dtype: Of the codes: "float8_e4m3fn" or "int8".
  """

  out_dtypes: ClassVar[tuple[str, ...]] = QUANTIZED_DTYPES

  out_dtype: str | None = "float8_e4m3fn"

  def __post_init__(self) -> None:
    super().__post_init__()
    _check_dtype(type(self).__name__, "out_dtype", self.out_dtype, self.out_dtypes)


@dataclasses.dataclass(frozen=True)
class SwigluQuantizeProblem(QuantizeRowsProblem):
  """`SwigluProblem`, its result quantised; see `RowProblem`.

  Attributes:
    out_dtype: Of the codes: "float8_e4m3fn" or "int8".
    row_scales: True: a scale for each row, which needs the whole row first.
      False: one scale that the caller gives.
  """

  row_scales: bool = True


@dataclasses.dataclass(frozen=True)
class RmsNormProblem(RowProblem):
  """y = x·rsqrt(mean(x²) + eps)·weight, by rows; see `RowProblem`.

  Attributes:
    out_dtype: Of the result; None: `dtype`. "float8_e4m3fn" and "int8" store
      codes and a scale for each row.
    residual: Whether a second operand is added to x first, and the sum stored.
    num_splits: Segments that each row is summed in, where the caller fixes
      them: they move the bits of the result. None: the tile's.
  """

  out_dtypes: ClassVar[tuple[str, ...]] = (*FLOAT_DTYPES, *QUANTIZED_DTYPES)

  residual: bool = False
  num_splits: int | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.num_splits is not None:
      whole_field(self, "num_splits", 1)


@dataclasses.dataclass(frozen=True)
class TransposeProblem:
  """y[b] = transpose of x[b], x[b] of rows x columns, b < batch.

  Attributes:
    rows: Rows of x.
    columns: Columns of x.
    dtype: Of both, any that the models know the size of.
    batch: Matrices.
    warm_l2: See `RowProblem`.
  """

  rows: int
  columns: int
  dtype: str = "bfloat16"
  batch: int = 1
  warm_l2: bool = dataclasses.field(default=False, kw_only=True)

  def __post_init__(self) -> None:
    for name in ("rows", "columns", "batch"):
      whole_field(self, name, 0)
    if not isinstance(self.warm_l2, bool):
      raise ValueError(f"TransposeProblem.warm_l2={self.warm_l2!r}: expected True or False")
    dtypes.size_bytes(self.dtype)

  @property
  def elements(self) -> int:
    """batch·rows·columns."""
    return self.batch * self.rows * self.columns
