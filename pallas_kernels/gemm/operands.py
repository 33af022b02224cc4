"""The arrays of one product, as all implementations take them."""

import dataclasses
from typing import Any, NamedTuple

from pallas_kernels.batching import batch_of


@dataclasses.dataclass(frozen=True)
class Transposes:
  """Which operands are stored transposed; a kernel reads them where they lie.

  Attributes:
    a: A is stored [K, M].
    b: Each B is stored [N, K].
  """

  a: bool = False
  b: bool = False

  @property
  def any(self) -> bool:
    """Whether either is."""
    return self.a or self.b


class Sizes(NamedTuple):
  """Sizes of a product C[batch, m, n] = A[batch, m, k]·B[batch, k, n]."""

  batch: int
  m: int
  k: int
  n: int


# An array, a reference to one inside a kernel, or for planning only its shape and dtype.
Array = Any


class Operands(NamedTuple):
  """Arrays with a leading dimension of the batch, or 1 where all of it reads the same.

  Attributes:
    a: [batch or 1, M, K], or [batch or 1, K, M] transposed.
    bs: One B or two, each [batch or 1, K, N], or [batch or 1, N, K] transposed.
    per_row: Operands of the epilogue with a value a row, [batch or 1, M].
    per_column: The same a column, [batch or 1, N].
    added: Further pairs (A, B), of the sizes and storage of the first, whose
      products are added to its product in one accumulator: the gradient of what
      two weights are multiplied with. There is one B then, and nothing a row or a
      column.
  """

  a: Array
  bs: tuple[Array, ...]
  per_row: tuple[Array, ...] = ()
  per_column: tuple[Array, ...] = ()
  added: tuple[tuple[Array, Array], ...] = ()

  @classmethod
  def of_pairs(cls, xs: tuple[Array, ...], ys: tuple[Array, ...]) -> "Operands":
    """Those of Σ x·y."""
    (x, *more_x), (y, *more_y) = xs, ys
    return cls(x, (y,), added=tuple(zip(more_x, more_y, strict=True)))

  @property
  def pairs(self) -> tuple[tuple[Array, tuple[Array, ...]], ...]:
    """Each A with what it is multiplied with, in the order in which they are summed."""
    return ((self.a, self.bs), *((a, (b,)) for a, b in self.added))

  @property
  def apart(self) -> tuple["Operands", ...]:
    """Each pair on its own."""
    return (self._replace(added=()), *(Operands(a, (b,)) for a, b in self.added))

  def sizes(self, transposes: Transposes) -> Sizes:
    """The sizes of the product, or of each of those that are summed."""
    return sizes_of(
      self.a.shape,
      self.bs[0].shape,
      transposes,
      batch=batch_of(
        self.a, *self.bs, *self.per_row, *self.per_column, *(x for pair in self.added for x in pair)
      ),
    )


def sizes_of(
  a_shape: tuple[int, ...], b_shape: tuple[int, ...], transposes: Transposes, *, batch: int
) -> Sizes:
  """The sizes of a product from the shapes of its operands."""
  m, k = a_shape[:0:-1] if transposes.a else a_shape[1:]
  n = b_shape[1] if transposes.b else b_shape[2]
  return Sizes(batch, m, k, n)
