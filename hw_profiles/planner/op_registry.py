"""The ops that can be planned, by the class of their problem."""

from typing import Any

from hw_profiles.planner.op_model import OpModel

_BY_PROBLEM: dict[type[Any], OpModel[Any, Any]] = {}


def register(model: OpModel[Any, Any]) -> None:
  """Makes `plan` and `rank` take the op's problems.

  Raises:
    ValueError: its name or its problem class is another op's.
  """
  for known in _BY_PROBLEM.values():
    if known is not model and model.name == known.name:
      raise ValueError(f"name={model.name!r}: there is an op of that name")
  if _BY_PROBLEM.setdefault(model.problem_class, model) is not model:
    raise ValueError(
      f"problem_class={model.problem_class.__name__}:"
      f" {_BY_PROBLEM[model.problem_class].name} is found by it"
    )


def registered() -> tuple[OpModel[Any, Any], ...]:
  """All ops, in the order of their registration."""
  return tuple(_BY_PROBLEM.values())


def op_name(problem: object) -> str:
  """What an op is called that is one problem of a model among several.

  A problem that has an `op_name` says so itself: a matmul with two products is
  "gated_matmul". Else it is the model's name.
  """
  name: str = getattr(problem, "op_name", model_of(problem).name)
  return name


def model_of(problem: object) -> OpModel[Any, Any]:
  """The op that `problem` is a problem of.

  Raises:
    ValueError: there is none.
  """
  try:
    return _BY_PROBLEM[type(problem)]
  except KeyError:
    known = ", ".join(cls.__name__ for cls in _BY_PROBLEM)
    raise ValueError(f"problem={problem!r}: expected one of {known}") from None
