"""The ops that the compiler tasks take, and how lowering names their sizes and options.

Loads no JAX: the command line is checked with it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hw_profiles.frozen_map import FrozenMap
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.parsing import joined
from pallas_kernels.benchmark.workload import Workload

TASKS = ("mlir", "ascend", "port")
DEFAULT_PROFILES = ("h200_sxm", "ascend_910b3", "ascend_950pr")


@dataclasses.dataclass(frozen=True)
class _Lowered:
  """Sizes, and options of the command line with lowering's names for them."""

  sizes: tuple[str, ...]
  options: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _same(*names: str) -> dict[str, str]:
  return {name: name for name in names}


_GEMM = ("m", "k", "n")
_ROWS = ("rows", "columns")
OPS: Mapping[str, _Lowered] = {
  "matmul": _Lowered(_GEMM, _same("bias", "activation", "out_dtype")),
  "gated_matmul": _Lowered(_GEMM, _same("activation", "out_dtype")),
  "flash_attention": _Lowered(
    ("batch", "seq_q", "seq_kv", "heads", "kv_heads", "head_dim"), {"causal": "is_causal"}
  ),
  "swiglu": _Lowered(_ROWS, _same("out_dtype")),
  "swiglu_quantize": _Lowered(_ROWS, _same("code_dtype")),
  "quantize_rows": _Lowered(_ROWS, _same("code_dtype")),
  "rms_norm": _Lowered(_ROWS, _same("out_dtype")),
  "transpose": _Lowered(_ROWS),
}


def arguments(workload: Workload) -> tuple[FrozenMap[str, int], FrozenMap[str, Any]]:
  """Sizes and options as `lowering` takes them.

  Raises:
    UsageError: an op, a size or an option is one that no compiler is given yet.
  """
  if workload.op.name not in OPS:
    raise UsageError(
      f"--kernel={workload.op.name}: no compiler is given it; these: {', '.join(OPS)}"
    )
  op = OPS[workload.op.name]
  sizes: dict[str, int] = {}
  for field in dataclasses.fields(workload.shape):
    value = getattr(workload.shape, field.name)
    if field.name in op.sizes:
      # key heads that are left out are the query's
      sizes[field.name] = sizes["heads"] if value is None else value
    elif value not in (field.default, sizes.get("head_dim")):
      raise _not_lowered(f"--shape={workload.shape}: {field.name}", workload)
  options: dict[str, Any] = {}
  for field in dataclasses.fields(workload.options):
    value = getattr(workload.options, field.name)
    if field.name in op.options:
      if value is not None:
        options[op.options[field.name]] = value
    elif field.name == "causal_alignment" and (
      value == "top_left" or sizes["seq_q"] == sizes["seq_kv"]
    ):
      continue
    elif value != field.default:
      raise _not_lowered(f"--{field.name}={value}", workload)
  return FrozenMap(sizes), FrozenMap(options)


def _not_lowered(what: str, workload: Workload) -> UsageError:
  return UsageError(
    f"{what}: {workload.op.name} is not lowered with it; --task={joined(TASKS, 'and')} take "
    f"{', '.join(OPS[workload.op.name].sizes)} and the options "
    f"{', '.join(OPS[workload.op.name].options) or '(none)'}"
  )
