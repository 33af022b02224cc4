"""The arrays a kernel is run on: random normal, the same on every run."""

import dataclasses

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pallas_kernels.benchmark.parsing import Shape

_SEED = 20240229


@dataclasses.dataclass(frozen=True)
class Part:
  """The rows and columns of C that are computed; None: all of them.

  Attributes:
    rows: Rows from the first on.
    columns: Columns from the first on.
  """

  rows: int | None = None
  columns: int | None = None

  def of(self, shape: Shape) -> Shape:
    """The sizes of the smaller product that gives this part."""
    return dataclasses.replace(
      shape,
      m=shape.m if self.rows is None else min(self.rows, shape.m),
      n=shape.n if self.columns is None else min(self.columns, shape.n),
    )

  def describe(self, shape: Shape) -> str:
    """`all` or which rows and columns."""
    part = self.of(shape)
    if part == shape:
      return "all"
    return f"rows 0:{part.m}, columns 0:{part.n}"


ALL = Part()


@dataclasses.dataclass(frozen=True)
class Operands:
  """A [batch,] m x k, B [batch,] k x n and, where asked for, a bias row of n."""

  a: npt.NDArray[np.generic]
  b: npt.NDArray[np.generic]
  bias: npt.NDArray[np.generic] | None

  def part(self, part: Part) -> "Operands":
    """The operands of that part of the result: fewer rows of A, fewer columns of B."""
    return Operands(
      a=np.ascontiguousarray(self.a[..., : part.rows, :]),
      b=np.ascontiguousarray(self.b[..., : part.columns]),
      bias=None if self.bias is None else self.bias[: part.columns],
    )


def make(shape: Shape, dtype: str, *, bias: bool) -> Operands:
  """Standard normal operands, drawn in float32 and rounded to `dtype`.

  Never zeros: they would hide errors, and draw less power on a GPU, so that it
  clocks higher than on real data.
  """
  # one generator an array, so that a bias changes neither a nor b
  generators = [np.random.default_rng(seed) for seed in np.random.SeedSequence(_SEED).spawn(3)]
  leading = () if shape.batch is None else (shape.batch,)
  sizes = [(*leading, shape.m, shape.k), (*leading, shape.k, shape.n), (shape.n,)]
  a, b, row = (
    generator.standard_normal(size, dtype=np.float32).astype(numpy_dtype(dtype))
    for generator, size in zip(generators, sizes, strict=True)
  )
  return Operands(a=a, b=b, bias=row if bias else None)


def numpy_dtype(name: str) -> np.dtype[np.generic]:
  """The NumPy dtype called `name`, those of ml_dtypes included."""
  extended = getattr(ml_dtypes, name, None)
  return np.dtype(name if extended is None else extended)
