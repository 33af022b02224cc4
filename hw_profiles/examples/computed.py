"""What a table of recomputed values is."""

from collections.abc import Callable, Mapping
from typing import Any

Inputs = Mapping[str, Any]
"""The inputs of one value, as the text has them."""

Computed = Mapping[str, Callable[[Inputs], Any]]
"""Identifier to how the library computes that value from its inputs."""

KIB = 1024
MIB = 1024**2
