"""What each implementation of flash_attention and decode_attention computes: the one table of it.

The dispatch refuses by it, docs/attention.md shows it, and the tests hold both
against what `explain` says. What depends on the sizes of a tile, on the device
or on the version of JAX is refused elsewhere, with its own reason.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from hw_profiles.attention import cluster_decode, warp_specialized
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.dispatch import Refusal

# What a call may have beside query, key and value, and the operands that it comes in.
OPTIONAL_OPERANDS: dict[str, tuple[str, ...]] = {
  "bias": ("bias",),
  "mask": ("mask",),
  "sequence lengths": ("query_lengths", "key_lengths"),
  "segment ids": ("query_segments", "key_segments"),
}


@dataclasses.dataclass(frozen=True)
class Support:
  """What one implementation of the forward pass, or of the gradients, computes.

  Attributes:
    runs_on: The device, for the documentation; the dispatch asks `dispatch` and `device`.
    dtypes: Of query, key and value.
    optional: Keys of `OPTIONAL_OPERANDS` that it takes.
    largest_head_dim: Of query and key, and of values; None: any.
    otherwise: What runs where it was asked for by name and lacks something; None: it is an error.
  """

  runs_on: str
  dtypes: tuple[str, ...]
  optional: frozenset[str]
  largest_head_dim: int | None = None
  otherwise: str | None = None

  def refusal(self, operands: AttentionOperands) -> Refusal | None:
    """What these operands, or their shapes, have that is not computed."""
    for what, array in (("query, key and value", operands.query), ("bias", operands.bias)):
      if array is not None and array.dtype == jnp.float64 and "float64" not in self.dtypes:
        return Refusal("dtype", f"{what}: float64 is wider than the kernels' float32 arithmetic")
    name = jnp.dtype(operands.query.dtype).name
    if name not in self.dtypes:
      return Refusal("dtype", f"{name} operands: it takes {' and '.join(self.dtypes)}")
    given = [
      field
      for option, fields in OPTIONAL_OPERANDS.items()
      for field in fields
      if option not in self.optional and getattr(operands, field) is not None
    ]
    if given:
      return Refusal("option", f"{', '.join(given)}: not in this kernel")
    limit, sizes = self.largest_head_dim, operands.sizes
    largest = max(sizes.head_dim, sizes.value_dim)
    if limit is not None and largest > limit:
      return Refusal("option", f"head size {largest}: it takes at most {limit}")
    return None


_ALL = frozenset(OPTIONAL_OPERANDS)
_PORTABLE = ("float32", "bfloat16", "float16")
_HOPPER = Support(
  "Hopper, JAX from 0.11",
  warp_specialized.SUPPORTED_DTYPES,
  frozenset({"sequence lengths", "segment ids"}),
  warp_specialized.WGMMA_MAX_COLUMNS,
)
_TRITON = Support("NVIDIA GPUs from 8.0 on", _PORTABLE, _ALL)

FORWARD: dict[str, Support] = {
  "mosaic_gpu": _HOPPER,
  "triton": _TRITON,
  "xla": Support("anywhere", (*_PORTABLE, "float64"), _ALL),
  "interpret": dataclasses.replace(_TRITON, runs_on="anywhere, slowly"),
  "mosaic_gpu_interpret": dataclasses.replace(
    _HOPPER, runs_on="anywhere, very slowly, JAX from 0.11"
  ),
}
"""Of the forward pass, by the name of the implementation."""

# dK and dV of 64 keys of a consumer beside its scores are as many registers as there are
_GRADIENT_HEAD_DIM = 128

BACKWARD: dict[str, Support] = {
  name: dataclasses.replace(one, largest_head_dim=_GRADIENT_HEAD_DIM, otherwise=otherwise)
  if (otherwise := {"mosaic_gpu": "triton", "mosaic_gpu_interpret": "interpret"}.get(name))
  else one
  for name, one in FORWARD.items()
}
"""Of the gradients."""


def markdown() -> str:
  """The table of docs/attention.md."""
  options = tuple(OPTIONAL_OPERANDS)
  head = ("implementation", "runs on", "dtypes", "head sizes up to", *options, "else")
  lines = [_line(head), _line(("---",) * len(head))]
  for what, table in (("", FORWARD), (", gradients", BACKWARD)):
    for name, one in table.items():
      cells: list[Any] = [f"`{name}`{what}", one.runs_on, ", ".join(one.dtypes)]
      cells.append(one.largest_head_dim or "any")
      cells += ["yes" if option in one.optional else "-" for option in options]
      cells.append(f"`{one.otherwise}`" if one.otherwise else "-")
      lines.append(_line(cells))
  return "\n".join(lines) + "\n"


@dataclasses.dataclass(frozen=True)
class DecodeSupport:
  """What one implementation of decode_attention computes.

  Attributes:
    runs_on: The device, for the documentation.
    dtypes: Of the query and the caches.
    head_dims: Of query and keys, and of values; None: any.
    queries: Whether a sequence may have several.
    pages: Whether it takes a page table.
    parts: Parts that a sequence's keys may be cut into; None: any number; (): it cuts none.
  """

  runs_on: str
  dtypes: tuple[str, ...]
  head_dims: tuple[int, ...] | None = None
  queries: bool = True
  pages: bool = True
  parts: tuple[int, ...] | None = None


_DECODE_TRITON = DecodeSupport(_TRITON.runs_on, _PORTABLE)

# What the Hopper kernel lacks is the planner's knowledge, too: `cluster_decode`.
DECODE: dict[str, DecodeSupport] = {
  "triton": _DECODE_TRITON,
  "xla": DecodeSupport("anywhere", (*_PORTABLE, "float64"), parts=()),
  "mosaic_gpu": DecodeSupport(
    "Hopper, JAX from 0.11, when asked for by name",
    warp_specialized.SUPPORTED_DTYPES,
    head_dims=cluster_decode.HEAD_DIMS,
    queries=False,
    pages=False,
    parts=cluster_decode.PARTS,
  ),
  "interpret": dataclasses.replace(_DECODE_TRITON, runs_on="anywhere, slowly"),
}
"""Of decode_attention, by the name of the implementation; the first that can run is chosen."""


def decode_markdown() -> str:
  """The table of decode_attention in docs/attention.md."""

  def listed(numbers: tuple[int, ...] | None) -> str:
    return "any" if numbers is None else ", ".join(map(str, numbers)) or "-"

  head = ("implementation", "runs on", "dtypes", "head sizes", "several queries", "pages", "parts")
  lines = [_line(head), _line(("---",) * len(head))]
  for name, one in DECODE.items():
    yes_or_no = ("yes" if has else "-" for has in (one.queries, one.pages))
    cells = (f"`{name}`", one.runs_on, ", ".join(one.dtypes), listed(one.head_dims), *yes_or_no)
    lines.append(_line((*cells, listed(one.parts))))
  return "\n".join(lines) + "\n"


def _line(cells: Any) -> str:
  return f"| {' | '.join(map(str, cells))} |"
