"""What is computed, without arrays and without tiles: the same for all implementations."""

import dataclasses
from typing import Any

from pallas_kernels.attention.masks import BandRule
from pallas_kernels.attention.softmax import LogitRule


@dataclasses.dataclass(frozen=True)
class AttentionRule:
  """The options that say what a call computes.

  Attributes:
    scale: Factor of the dot products.
    soft_cap: c in c·tanh(logits / c); None: no cap.
    band: Which keys a query sees by position.
    precision: Of products of float32 operands, as `lax.dot_general` takes it.
  """

  scale: float
  soft_cap: float | None
  band: BandRule
  precision: Any

  def logits(self, *, has_bias: bool) -> LogitRule:
    """From dot products to logits."""
    return LogitRule(scale=self.scale, soft_cap=self.soft_cap, has_bias=has_bias)
