"""What a table of recomputed values is."""

from collections.abc import Callable, Mapping
from typing import Any

import hw_profiles as hw

Inputs = Mapping[str, Any]
"""The inputs of one value, as the text has them."""

Computed = Mapping[str, Callable[[Inputs], Any]]
"""Identifier to how the library computes that value from its inputs."""

DTYPE_OF_BYTES = {1: "int8", 2: "bfloat16", 4: "float32"}
"""A dtype of each element size, where an entry has only the size."""

KIB = 1024
MIB = 1024**2


def change(inputs: Inputs) -> hw.TrafficChange:
  """From the entry's `a` to its `b`: bytes, or what bytes are in proportion to."""
  return hw.traffic_change(before_bytes=inputs["a"], after_bytes=inputs["b"])


def over(inputs: Inputs) -> float:
  """The entry's `a` as a multiple of its `b`."""
  return hw.traffic_change(before_bytes=inputs["b"], after_bytes=inputs["a"]).ratio
