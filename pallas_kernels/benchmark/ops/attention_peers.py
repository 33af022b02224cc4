"""What people would use instead of `flash_attention` and `decode_attention`.

    xla       jax.nn.dot_product_attention, a score matrix in memory
    cudnn     the same function through cuDNN's fused kernels
    fa3       flash-attn3-jax, a binding of FlashAttention-3 (Hopper)
    tokamax   tokamax, its Mosaic GPU kernel

The last two are imported where they are asked for. A peer that is not
installed, or does not have the call, raises with a sentence that says so.
"""

import dataclasses
import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from pallas_kernels.benchmark.ops.op import Function

if TYPE_CHECKING:
  import jax

PEERS = ("xla", "cudnn", "fa3", "tokamax")

_PACKAGES = {"fa3": ("flash_attn3_jax", "flash-attn3-jax"), "tokamax": ("tokamax", "tokamax")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerMask:
  """Which keys a peer's queries see.

  Attributes:
    causal: No key after a query's own position.
    window: Keys seen to the left and to the right; None: all.
    bottom_right: The last query is at the last key, not the first at the first.
  """

  causal: bool = False
  window: tuple[int | None, int | None] | None = None
  bottom_right: bool = False


def peer(name: str, mask: PeerMask) -> Function:
  """out = attention(query, key, value), [B, T, N, H], as one of PEERS computes it.

  Raises:
    ImportError: it is not installed.
    NotImplementedError: it has no such mask; at once, or when it is traced.
  """
  if name in ("xla", "cudnn"):
    return _of_jax(name, mask)
  if mask.window is not None:
    raise NotImplementedError(f"peer {name}: no window in its call here")
  package = _imported(name)

  def run(query: "jax.Array", key: "jax.Array", value: "jax.Array") -> Any:
    _refuse_rectangle(name, mask, query, key)
    if name == "fa3":
      return package.flash_mha(query, key, value, is_causal=mask.causal)
    return package.dot_product_attention(
      query, key, value, is_causal=mask.causal, implementation="mosaic"
    )

  return run


def _of_jax(name: str, mask: PeerMask) -> Function:
  """jax.nn.dot_product_attention; float32 at float32 accuracy, as the kernels here give it."""
  import jax
  import jax.numpy as jnp

  def run(query: "jax.Array", key: "jax.Array", value: "jax.Array") -> "jax.Array":
    seq_q, seq_kv = query.shape[1], key.shape[1]
    named: dict[str, Any] = {"is_causal": mask.causal, "implementation": name}
    if mask.window is not None:
      # its own open side is as wide as the keys
      left, right = (seq_kv if side is None else side for side in mask.window)
      named["local_window_size"] = (left, right)
    if name == "xla" and mask.bottom_right and seq_q != seq_kv:
      offset = jnp.arange(seq_kv)[None] - jnp.arange(seq_q)[:, None] - (seq_kv - seq_q)
      left, right = named.pop("local_window_size", (seq_kv, seq_kv))
      right = 0 if named.pop("is_causal") else right
      named["mask"] = ((offset >= -left) & (offset <= right))[None, None]
    else:
      _refuse_rectangle(name, mask, query, key)
    precision = "highest" if query.dtype == jnp.float32 else None
    with jax.default_matmul_precision(precision):
      return jax.nn.dot_product_attention(query, key, value, **named)

  return run


def _refuse_rectangle(name: str, mask: PeerMask, query: Any, key: Any) -> None:
  """Peers differ in where a mask lies where there are fewer queries than keys."""
  masked = mask.causal or mask.window is not None
  if masked and query.shape[1] != key.shape[1] and (mask.bottom_right or name != "xla"):
    raise NotImplementedError(
      f"peer {name}: a mask over {query.shape[1]} queries and {key.shape[1]} keys; peer xla has it"
    )


def _imported(name: str) -> Any:
  module, package = _PACKAGES[name]
  if name == "tokamax":
    _stand_in_for_its_profiler()
  try:
    return importlib.import_module(module)
  except ImportError as error:
    raise ImportError(f"peer {name}: pip install {package} ({error})") from error


def _stand_in_for_its_profiler() -> None:
  """tokamax imports xprof, for its own autotuning; where that is missing, empty modules."""
  # a stand-in made before has no spec to be found
  if "xprof" in sys.modules or importlib.util.find_spec("xprof") is not None:
    return
  path = ["xprof", "cli", "tools", "get_kernel_stats_tool"]
  names = [".".join(path[: depth + 1]) for depth in range(len(path))]
  for full in names:
    sys.modules.setdefault(full, types.ModuleType(full))
  sys.modules[names[-2]].get_kernel_stats_tool = sys.modules[names[-1]]  # type: ignore[attr-defined]
