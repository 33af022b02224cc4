"""Attention of a few queries a sequence on its key/value cache, as the benchmark sees it."""

import dataclasses

import hw_profiles
from hw_profiles import DecodeConfig, DecodeProblem
from pallas_kernels.benchmark.ops.flash_attention import attention_lines
from pallas_kernels.benchmark.ops.op import Shape, option
from pallas_kernels.benchmark.ops.planned import PlannedOp

_DTYPES = ("bfloat16", "float16", "float32")


@dataclasses.dataclass(frozen=True)
class DecodeShape(Shape):
  """Q of batch x seq_q x heads x head_dim; a cache of seq_kv keys a sequence."""

  batch: int
  seq_kv: int
  heads: int
  kv_heads: int | None = None
  head_dim: int = 128
  value_dim: int | None = None
  seq_q: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeOptions:
  """The options of decode attention that are flags."""

  page_size: int | None = option(
    None, "Keys of a page; left out: a sequence's keys lie one after another.", read=int
  )
  out_dtype: str | None = option(None, "Result dtype; left out: the operands'", choices=_DTYPES)


class DecodeAttention(PlannedOp[DecodeShape, DecodeConfig, DecodeOptions]):
  """Decode attention as the planner knows it; no kernel computes it yet."""

  name = "decode_attention"
  shape_class = DecodeShape
  # One layer of Qwen3-8B for 8 sequences of 8192 tokens.
  default_shape = DecodeShape(batch=8, seq_kv=8192, heads=32, kv_heads=8)
  config_class = DecodeConfig
  default_tiles = (DecodeConfig(64), DecodeConfig(128), DecodeConfig(512))
  options_class = DecodeOptions
  dtypes = _DTYPES

  def problem(self, shape: DecodeShape, dtype: str, options: DecodeOptions) -> DecodeProblem:
    """All sequences at their full length."""
    return DecodeProblem(
      batch=shape.batch,
      seq_kv=shape.seq_kv,
      heads=shape.heads,
      kv_heads=shape.kv_heads,
      head_dim=shape.head_dim,
      value_dim=shape.value_dim,
      seq_q=shape.seq_q,
      page_size=options.page_size,
      dtype=dtype,
      out_dtype=options.out_dtype,
    )

  def describe_plan(self, plan: hw_profiles.TilePlan) -> tuple[str, ...]:
    """Programs and rounds, bytes of Q, K, V and O."""
    return attention_lines(plan)

  def flops(self, shape: DecodeShape) -> int:
    """Of all visible pairs."""
    return self.problem(shape, self.dtypes[0], DecodeOptions()).flops

  def once_through_bytes(self, shape: DecodeShape, dtype: str, options: DecodeOptions) -> int:
    """K and V read once, Q in and O out."""
    return self.problem(shape, dtype, options).once_through_bytes


DECODE_ATTENTION = DecodeAttention()
