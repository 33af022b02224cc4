"""The activations an epilogue can apply, and what one costs on each vendor's units."""

import dataclasses

from hw_profiles.frozen_map import FrozenMap


@dataclasses.dataclass(frozen=True)
class ActivationCost:
  """Operations of one activation, an element.

  Attributes:
    special_functions: Results of an SM's special-function units.
    vector_operations: Simple float32 arithmetic on an Ascend vector core.
    exp_operations: exp and its like, division included, on a vector core.
  """

  special_functions: int
  vector_operations: int
  exp_operations: int


_COSTS = FrozenMap(
  {
    # silu(x) = x / (1 + exp(-x)). On an SM exp2 and a reciprocal; on a vector
    # core a negation, an addition, a multiplication and the conversion to the
    # result dtype at the simple rate, exp and the division at exp's.
    "silu": ActivationCost(special_functions=2, vector_operations=4, exp_operations=2),
  }
)
_NONE = ActivationCost(special_functions=0, vector_operations=0, exp_operations=0)

ACTIVATIONS: tuple[str, ...] = tuple(_COSTS)
"""Names of the activations, for every op that takes one."""


def activation_cost(name: str | None) -> ActivationCost:
  """What one element of `name` costs; nothing for None.

  Raises:
    ValueError: there is no such activation.
  """
  if name is None:
    return _NONE
  check_activation("activation", name)
  return _COSTS[name]


def check_activation(argument: str, name: object) -> None:
  """Raises ValueError unless `name` is None or one of `ACTIVATIONS`."""
  if name is not None and name not in ACTIVATIONS:
    known = ", ".join(map(repr, ACTIVATIONS))
    raise ValueError(f"{argument}={name!r}: expected None or {known}")
