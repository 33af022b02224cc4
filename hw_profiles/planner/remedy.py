"""Turns shortfalls into a sentence that names the nearest config that works."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from hw_profiles.capacity.buffers import Shortfall
from hw_profiles.config import MatmulConfig

Feasible = Callable[[MatmulConfig], bool]

# Smallest steps worth trying: 8 columns are one wgmma's granule, 16 a fractal's
# and the least side of Triton's dot.
_STEP = {"block_m": 16, "block_n": 8, "block_k": 8}
# Larger values of these need more of every memory; more warps need fewer registers each.
_GROWS_NEEDS = ("block_m", "block_n", "block_k", "num_stages")
# How far upwards a shape that is too small is searched.
_GROWTH = 4


def _value(config: MatmulConfig, field: str) -> int:
  """The field, or what it means where it is None."""
  effective = {
    "num_warps": config.warps,
    "num_consumer_warpgroups": config.consumer_warpgroups,
    "epilogue_block_n": config.epilogue_columns,
  }
  return effective[field] if field in effective else getattr(config, field)


def _with(config: MatmulConfig, sizes: dict[str, Any]) -> MatmulConfig:
  return dataclasses.replace(config, **sizes)


def _below(value: int, step: int) -> Iterator[int]:
  yield from range((value - 1) // step * step, 0, -step)


def _above(value: int, step: int) -> Iterator[int]:
  yield from range((value // step + 1) * step, max(value, step) * _GROWTH + 1, step)


def reason(config: MatmulConfig, shortfalls: tuple[Shortfall, ...], feasible: Feasible) -> str:
  """`field=value: statement; largest field that fits is ...`.

  The config suggested passes every check, not only the one that failed first.

  Args:
    config: The config that does not run.
    shortfalls: Why, the first one first; at least one.
    feasible: Whether another config runs.
  """
  first = shortfalls[0]
  if not first.fields:
    return f"{first.statement}; {first.hint}" if first.hint else first.statement
  for field in first.fields:
    value, step = _value(config, field), _STEP.get(field, 1)
    directions = [("largest", _below)]
    if first.resource == "tile shape" or field not in _GROWS_NEEDS:
      directions.append(("smallest", _above))
    for direction, candidates in directions:
      for candidate in candidates(value, step):
        if feasible(_with(config, {field: candidate})):
          return f"{field}={value}: {first.statement}; {direction} {field} that fits is {candidate}"
  field = first.fields[0]
  head = f"{field}={_value(config, field)}: {first.statement}"
  smaller = _shrunk(config, feasible)
  if smaller is None:
    return head
  return f"{head}; no single field mends it, {smaller.describe()} fits"


def _shrunk(config: MatmulConfig, feasible: Feasible) -> MatmulConfig | None:
  """The config after halving its largest block until it runs; None if it never does."""
  sizes = {"block_m": config.block_m, "block_n": config.block_n, "block_k": config.block_k}
  # start from powers of two, which every shape rule allows
  sizes = {name: 1 << (size - 1).bit_length() for name, size in sizes.items()}
  base = dataclasses.replace(
    config,
    num_stages=min(config.num_stages, 2),
    num_warps=None,
    num_consumer_warpgroups=None,
    epilogue_block_n=None,
  )
  while max(sizes.values()) >= 16:
    candidate = _with(base, sizes)
    if feasible(candidate):
      return candidate
    largest = max(sizes, key=lambda name: sizes[name])
    sizes[largest] //= 2
  return None
