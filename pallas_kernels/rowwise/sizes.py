"""Sizes of a row-wise call, and which no kernel counts to."""

import dataclasses

from pallas_kernels import dispatch
from pallas_kernels.dispatch import Refusal
from pallas_kernels.rowwise.request import RowOperands, RowRequest
from pallas_kernels.rowwise.rms_gradient import RmsNormGradient
from pallas_kernels.rowwise.transposing import Transpose


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of a call; `vmap` changes them."""

  batch: int
  rows: int
  columns: int

  @property
  def elements(self) -> int:
    """batch·rows·columns."""
    return self.batch * self.rows * self.columns


def sizes_of(operands: RowOperands) -> Sizes:
  """Of the arrays, or of their shapes."""
  return Sizes(operands.batch, *operands.matrices[0].shape[1:])


def count_refusal(request: RowRequest, sizes: Sizes) -> Refusal | None:
  """Of more than kernels count to; a batch of all ops but these is more rows."""
  if isinstance(request.spec, (Transpose, RmsNormGradient)):
    return dispatch.count_refusal(batch=sizes.batch, rows=sizes.rows, columns=sizes.columns)
  return dispatch.count_refusal(rows=sizes.batch * sizes.rows, columns=sizes.columns)
