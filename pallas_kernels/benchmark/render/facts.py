"""The environment in one sentence, for people."""

from collections.abc import Mapping
from typing import Any


def sentence(environment: Mapping[str, Any]) -> str:
  """Versions and device, what is not known left out."""
  versions = [
    f"{name} {environment[name]}"
    for name in ("pallas_kernels", "jax", "numpy", "python")
    if environment.get(name)
  ]
  device = environment.get("device_kind")
  parts = ["pallas-bench", ", ".join(versions)]
  if device:
    parts.append(f"on {device}")
  if environment.get("driver"):
    parts.append(f"driver {environment['driver']}")
  if environment.get("git_commit"):
    parts.append(f"commit {environment['git_commit'][:12]}")
  if environment.get("date"):
    parts.append(environment["date"])
  return " · ".join(parts)
