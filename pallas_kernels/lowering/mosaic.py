"""The Hopper kernels as Mosaic GPU lowers them, and what is in them; needs no GPU."""

import collections
import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import hw_profiles
import pallas_kernels
from hw_profiles import AttentionConfig, GpuProfile, MatmulConfig
from hw_profiles.frozen_map import FrozenMap
from pallas_kernels import compat, device
from pallas_kernels.hopper.refusals import OLDER_JAX
from pallas_kernels.lowering.calls import check_config, operand_dtype, options_of, sizes_of
from pallas_kernels.lowering.jax_private import (
  MosaicModule,
  OtherJaxNeededError,
  mosaic_modules,
)

_HOPPER = (9, 0)
_WGMMA = re.compile(r"wgmma\.mma_async\.\S*?(m\d+n\d+k\d+)\.")
_LOADS = "nvvm.cp.async.bulk.tensor.shared.cluster.global"
_STORES = "nvvm.cp.async.bulk.tensor.global.shared.cta"
_BARRIER = "nvvm.mbarrier.init"
# The same in inline PTX, which a barrier is from jax 0.11 on, and every load from 0.12 on.
_LOADS_PTX = re.compile(r"cp\.async\.bulk\.tensor\.\dd\.shared::(?:cluster|cta)\.global")
_STORES_PTX = re.compile(r"cp\.async\.bulk\.tensor\.\dd\.global\.shared::cta")
_BARRIER_PTX = re.compile(r"mbarrier\.init\.")


@dataclasses.dataclass(frozen=True)
class MosaicSummary:
  """What one Mosaic GPU kernel allocates and issues, read from its lowered module.

  Counts are of the module's text: what stands in a loop counts once.

  Attributes:
    kernel: Name of the kernel.
    shared_bytes: Shared memory of a thread block.
    barriers: Barriers (mbarrier) that it initialises.
    wgmmas: wgmma instructions by shape ("m64n256k16").
    tma_loads: Copies by TMA from global to shared memory.
    tma_stores: Copies by TMA back.
    grid: Thread blocks.
    block: Threads of one.
    cluster: Thread blocks of a cluster.
  """

  kernel: str
  shared_bytes: int
  barriers: int
  wgmmas: FrozenMap[str, int]
  tma_loads: int
  tma_stores: int
  grid: tuple[int, int, int]
  block: tuple[int, int, int]
  cluster: tuple[int, int, int]


def summarise(module: MosaicModule) -> MosaicSummary:
  """Counts what stands in a lowered module."""
  assembly = "\n".join(module.assembly)

  def count(operation: str, ptx: re.Pattern[str]) -> int:
    return module.operations.get(operation, 0) + len(ptx.findall(assembly))

  return MosaicSummary(
    kernel=module.name,
    shared_bytes=module.shared_bytes,
    barriers=count(_BARRIER, _BARRIER_PTX),
    wgmmas=FrozenMap(collections.Counter(_WGMMA.findall(assembly))),
    tma_loads=count(_LOADS, _LOADS_PTX),
    tma_stores=count(_STORES, _STORES_PTX),
    grid=module.grid,
    block=module.block,
    cluster=module.cluster,
  )


_Call = tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]


def _array(*size: int, dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(size, dtype)


def _matmul(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> _Call:
  """Options: `bias` (True or False), `activation`, `intermediate_dtype`, `out_dtype`."""
  defaults = {"bias": False, "activation": None, "intermediate_dtype": None, "out_dtype": None}
  chosen = options_of("matmul", options, defaults)
  m, k, n = sizes_of("matmul", sizes, ("m", "k", "n"))
  check_config("matmul", config, MatmulConfig, ())
  has_bias = chosen.pop("bias")

  def function(a: jax.Array, b: jax.Array, *bias: jax.Array) -> jax.Array:
    row = bias[0] if bias else None
    return pallas_kernels.matmul(
      a, b, bias=row, config=config, implementation="mosaic_gpu", **chosen
    )

  bias = (_array(n, dtype=dtype),) if has_bias else ()
  return function, (_array(m, k, dtype=dtype), _array(k, n, dtype=dtype), *bias)


def _gated_matmul(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> _Call:
  """Options: `activation`, `intermediate_dtype`, `out_dtype`."""
  defaults = {"activation": "silu", "intermediate_dtype": None, "out_dtype": None}
  chosen = options_of("gated_matmul", options, defaults)
  m, k, n = sizes_of("gated_matmul", sizes, ("m", "k", "n"))
  check_config("gated_matmul", config, MatmulConfig, ())

  def function(x: jax.Array, gate: jax.Array, up: jax.Array) -> jax.Array:
    return pallas_kernels.gated_matmul(
      x, gate, up, config=config, implementation="mosaic_gpu", **chosen
    )

  weight = _array(k, n, dtype=dtype)
  return function, (_array(m, k, dtype=dtype), weight, weight)


def _flash_attention(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> _Call:
  """Options: `is_causal` (aligned at the top left), `scale`, `logits_soft_cap`."""
  if not compat.CARRIES_ARRAYS:
    raise OtherJaxNeededError(f"flash_attention: its Hopper kernel {OLDER_JAX}")
  defaults = {"is_causal": False, "scale": None, "logits_soft_cap": None}
  chosen = options_of("flash_attention", options, defaults)
  names = ("batch", "seq_q", "seq_kv", "heads", "kv_heads", "head_dim")
  batch, seq_q, seq_kv, heads, kv_heads, head_dim = sizes_of("flash_attention", sizes, names)
  check_config("flash_attention", config, AttentionConfig, ())

  def function(query: jax.Array, key: jax.Array, value: jax.Array) -> Any:
    return pallas_kernels.flash_attention(
      query,
      key,
      value,
      causal_alignment="top_left" if chosen["is_causal"] else None,
      config=config,
      implementation="mosaic_gpu",
      **chosen,
    )

  keys = _array(batch, seq_kv, kv_heads, head_dim, dtype=dtype)
  return function, (_array(batch, seq_q, heads, head_dim, dtype=dtype), keys, keys)


MOSAIC_OPS: dict[str, Callable[..., _Call]] = {
  "matmul": _matmul,
  "gated_matmul": _gated_matmul,
  "flash_attention": _flash_attention,
}
"""The ops with a Hopper kernel that can be lowered here, by name."""


def mosaic_call(
  op: str, shapes: Mapping[str, int], dtype: Any, config: Any, **options: Any
) -> _Call:
  """The op as a call of its Hopper kernel: a function, and shapes of its arrays.

  Raises:
    NotImplementedError: the op is none of MOSAIC_OPS.
    ValueError: an argument is wrong.
  """
  if op not in MOSAIC_OPS:
    raise NotImplementedError(
      f"{op}: no Hopper kernel that can be lowered here; these can: {', '.join(MOSAIC_OPS)}"
    )
  return MOSAIC_OPS[op](shapes, operand_dtype(dtype), config, options)


def mosaic_gpu_ir(
  op: str,
  shapes: Mapping[str, int],
  dtype: Any,
  config: Any,
  *,
  profile: str = "h200_sxm",
  keep_stages: bool = True,
  **options: Any,
) -> tuple[MosaicModule, ...]:
  """The Mosaic GPU modules of an op's Hopper kernel, lowered as for a device that is not here.

  Args:
    op: One of `MOSAIC_OPS`.
    shapes: Sizes by name, each at least 1.
    dtype: Of the operands.
    config: The op's config.
    profile: A Hopper GPU.
    keep_stages: Keep the text of the stages before the last, too.
    **options: The op's own.

  Returns:
    The kernels of the call in order; most ops have one.

  Raises:
    ValueError: an argument is wrong, or the tile does not fit.
    NotImplementedError: there is no such kernel on that device, or in this JAX version.
  """
  gpu = hw_profiles.get_profile(profile)
  if not isinstance(gpu, GpuProfile) or gpu.compute_capability != _HOPPER:
    raise NotImplementedError(
      f"profile={profile!r}: Hopper kernels are for compute capability 9.0 (h100_sxm, h200_sxm)"
    )
  function, arrays = mosaic_call(op, shapes, dtype, config, **options)
  with device.abstract_gpu(device_kind=gpu.device_kinds[0], num_cores=gpu.sm_count):
    return mosaic_modules(function, *arrays, keep_stages=keep_stages)
