"""How long stages take beside each other when they share a bandwidth."""

from collections.abc import Mapping, Sequence


def shared_durations_us(
  durations_us: Mapping[str, float],
  after: Mapping[str, Sequence[str]],
  demands: Mapping[str, Mapping[str, float]],
) -> dict[str, float]:
  """Each stage's duration where the stages running at once share resources fairly.

  A stage alone would use the share d of a resource. While the running stages ask
  for D = Σ d > 1 of it, each of them advances at 1/D of its speed (the slowest of
  its resources decides). Nothing is lost: the resource works at its full rate.

  Args:
    durations_us: Stage to its time alone.
    after: Stage to those that must have ended; without circles.
    demands: Stage to resource to the share it uses alone, in [0, 1].
  """
  remaining_us = dict(durations_us)
  started_us: dict[str, float] = {}
  taken_us: dict[str, float] = {}
  running: dict[str, None] = {}
  now_us = 0.0
  while len(taken_us) < len(remaining_us):
    for name in remaining_us:
      if name not in started_us and all(before in taken_us for before in after[name]):
        started_us[name] = now_us
        running[name] = None
    load: dict[str, float] = {}
    for name in running:
      for resource, share in demands[name].items():
        load[resource] = load.get(resource, 0.0) + share
    slowdown = {
      name: max(
        (max(1.0, load[resource]) for resource, share in demands[name].items() if share),
        default=1.0,
      )
      for name in running
    }
    left_us = {name: remaining_us[name] * slowdown[name] for name in running}
    step_us = min(left_us.values())
    for name in list(running):
      if left_us[name] == step_us:
        taken_us[name] = now_us + step_us - started_us[name]
        del running[name]
      else:
        remaining_us[name] -= step_us / slowdown[name]
    now_us += step_us
  return taken_us
