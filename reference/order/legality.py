"""Two rewrites that change a program's result, as numbers that show it."""

import dataclasses

import numpy.typing as npt

from reference.activations import Activation, activate
from reference.formats import Float64Array, to_float64
from reference.rounding import round_to


@dataclasses.dataclass(frozen=True)
class Rewrite:
  """What a program gives, and what it gives after a rewrite.

  Attributes:
    stated: The result of the program as it is stated.
    rewritten: The result of the other one.
  """

  stated: Float64Array
  rewritten: Float64Array

  @property
  def difference(self) -> Float64Array:
    """rewritten - stated."""
    return self.rewritten - self.stated


def activation_of_parts(parts: npt.ArrayLike, *, activation: Activation = "silu") -> Rewrite:
  """act(Σ parts), and Σ act(parts): the activation moved into the loop over K.

  Partial sums 1 and -1 tell them apart: silu(0) = 0, silu(1) + silu(-1) =
  0.4621. An activation is no sum of activations, so it has to wait for the
  whole of K, wherever the tile is.

  Args:
    parts: [..., parts], partial sums of each result.
    activation: The activation.
  """
  values = to_float64(parts, name="parts")
  return Rewrite(
    stated=activate(values.sum(axis=-1), activation),
    rewritten=activate(values, activation).sum(axis=-1),
  )


def dropped_rounding(
  x: npt.ArrayLike, *, stored: npt.DTypeLike = "bfloat16", activation: Activation = "silu"
) -> Rewrite:
  """round(act(round(x))), and round(act(x)): the rounding of a stored sum left out.

  Keeping a sum in a register does not oblige a program to keep its bits: where
  a number is and which format it has are two choices. 1 + 2^-8 in
  bfloat16 tells them apart.

  Args:
    x: Sums.
    stored: The format of the sum and of the result.
    activation: The activation.
  """
  values = to_float64(x)
  kept = to_float64(round_to(values, stored))
  return Rewrite(
    stated=to_float64(round_to(activate(kept, activation), stored)),
    rewritten=to_float64(round_to(activate(values, activation), stored)),
  )
