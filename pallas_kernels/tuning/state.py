"""What a search has measured so far, as a file it can go on from."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from pallas_kernels.tuning.table import Environment, environment_of

SCHEMA = 1


class StateError(ValueError):
  """A state is damaged, or of another machine or setting; the message says which."""


@dataclasses.dataclass
class Trial:
  """What came of one config.

  Attributes:
    rounds_us: Median device time of each round.
    failure: Why it does not compile, or is wrong; None: it is fine.
    check: How its result was verified.
  """

  rounds_us: list[float] = dataclasses.field(default_factory=list)
  failure: str | None = None
  check: str | None = None


class State:
  """Trials by target and config, with what they depend on."""

  def __init__(self, environment: Environment, settings: Mapping[str, Any]) -> None:
    """No trials yet.

    Args:
      environment: What they will be measured on.
      settings: How: iterations, timer and so on, in the types of JSON.
    """
    self.environment = environment
    self.settings = dict(settings)
    self._trials: dict[str, dict[str, Trial]] = {}

  def trials(self, target: str) -> dict[str, Trial]:
    """The trials of a target, by the encoded config; to be added to."""
    return self._trials.setdefault(target, {})

  def __len__(self) -> int:
    """Configs tried."""
    return sum(map(len, self._trials.values()))

  def dump(self) -> str:
    """The text of a file."""
    return json.dumps(
      {
        "schema": SCHEMA,
        "environment": dataclasses.asdict(self.environment),
        "settings": self.settings,
        "trials": {
          target: {config: dataclasses.asdict(trial) for config, trial in trials.items()}
          for target, trials in self._trials.items()
        },
      },
      indent=1,
    )

  @classmethod
  def load(
    cls, text: str, source: str, *, environment: Environment, settings: Mapping[str, Any]
  ) -> "State":
    """The state in a file's text, to go on with here.

    Raises:
      StateError: it is no state, or was measured with another device, driver,
        JAX, commit or setting.
    """
    try:
      document = json.loads(text)
      if document["schema"] != SCHEMA:
        raise ValueError(f"schema {document['schema']!r}, and this version reads {SCHEMA}")
      theirs = environment_of(document["environment"])
      state = cls(environment, settings)
      for target, trials in document["trials"].items():
        state._trials[target] = {config: Trial(**trial) for config, trial in trials.items()}
      their_settings = dict(document["settings"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise StateError(f"{source}: no state of a search ({error})") from None
    mismatch = theirs.mismatch(
      device_kind=environment.device_kind, driver=environment.driver, jax=environment.jax
    )
    if mismatch is None and theirs.commit != environment.commit:
      mismatch = f"measured at commit {theirs.commit}, and this is {environment.commit}"
    if mismatch is None and their_settings != state.settings:
      mismatch = f"measured with {their_settings}, and this is {state.settings}"
    if mismatch is not None:
      raise StateError(f"{source}: {mismatch}; name another file, or delete this one")
    return state
