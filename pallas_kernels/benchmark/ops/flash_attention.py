"""O = softmax(scale·Q·Kᵀ + mask)·V, forward and backward, as the benchmark sees it."""

import dataclasses

import hw_profiles
from hw_profiles import AttentionConfig, AttentionProblem
from pallas_kernels.benchmark import cells
from pallas_kernels.benchmark.ops.op import Shape, option
from pallas_kernels.benchmark.ops.planned import PlannedOp

_DTYPES = ("bfloat16", "float16", "float32")


@dataclasses.dataclass(frozen=True)
class FlashAttentionShape(Shape):
  """Q of batch x seq_q x heads x head_dim; K of seq_kv x kv_heads, V with value_dim."""

  batch: int
  seq_q: int
  seq_kv: int
  heads: int
  kv_heads: int | None = None
  head_dim: int = 128
  value_dim: int | None = None


def _window(text: str) -> str:
  """The text of a window as it is, for example 1023:0, once it is known to be one."""
  _sides(text)
  return text


def _sides(text: str) -> tuple[int | None, int | None]:
  """Keys to the left and to the right; None: all.

  Raises:
    ValueError: `text` is not two of integers and "all", with a colon between.
  """
  parts = text.split(":")
  if len(parts) != 2 or not all(
    part == "all" or (part.isascii() and part.isdecimal()) for part in parts
  ):
    raise ValueError("expected keys to the left and right, for example 1023:0 or all:0")
  left, right = (None if part == "all" else int(part) for part in parts)
  return left, right


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlashAttentionOptions:
  """The options of attention that are flags."""

  causal: bool = option(False, "No query sees a key after its own position.")
  causal_alignment: str | None = option(
    None,
    "Where the queries stand if they are not as many as the keys",
    choices=("top_left", "bottom_right"),
  )
  window: str | None = option(
    None, "Keys seen to the left and right of a query, for example 1023:0.", read=_window
  )
  backward: bool = option(False, "The gradients instead of the result.", tasks=("plan",))
  out_dtype: str | None = option(None, "Result dtype; left out: the operands'", choices=_DTYPES)


class FlashAttention(PlannedOp[FlashAttentionShape, AttentionConfig, FlashAttentionOptions]):
  """Attention as the planner knows it; no kernel computes it yet."""

  name = "flash_attention"
  shape_class = FlashAttentionShape
  # One layer of Qwen3-8B for a prompt of 4096 tokens.
  default_shape = FlashAttentionShape(batch=1, seq_q=4096, seq_kv=4096, heads=32, kv_heads=8)
  config_class = AttentionConfig
  # Blocks of 64 x 64 are the text's; two consumer warpgroups of 64 queries suit
  # Hopper; long blocks of keys suit Ascend, whose vector cores then start less often.
  default_tiles = (
    AttentionConfig(64, 64, 1),
    AttentionConfig(128, 128, 2),
    AttentionConfig(64, 512, 2),
  )
  options_class = FlashAttentionOptions
  dtypes = (*_DTYPES, "float8_e4m3fn")

  def problem(
    self, shape: FlashAttentionShape, dtype: str, options: FlashAttentionOptions
  ) -> AttentionProblem:
    """All heads of all sequences."""
    return AttentionProblem(
      batch=shape.batch,
      seq_q=shape.seq_q,
      seq_kv=shape.seq_kv,
      heads=shape.heads,
      kv_heads=shape.kv_heads,
      head_dim=shape.head_dim,
      value_dim=shape.value_dim,
      causal=options.causal,
      causal_alignment=options.causal_alignment,
      window=None if options.window is None else _sides(options.window),
      dtype=dtype,
      out_dtype=options.out_dtype,
      backward=options.backward,
    )

  def describe_plan(self, plan: hw_profiles.TilePlan) -> tuple[str, ...]:
    """Programs and rounds, bytes of Q, K, V and O, and what the unfused program would move."""
    return attention_lines(plan)

  def flops(self, shape: FlashAttentionShape) -> int:
    """Of the forward without a mask."""
    return self.problem(shape, self.dtypes[0], FlashAttentionOptions()).flops

  def once_through_bytes(
    self, shape: FlashAttentionShape, dtype: str, options: FlashAttentionOptions
  ) -> int:
    """Inputs read once, results written once."""
    return self.problem(shape, dtype, options).once_through_bytes


def attention_lines(plan: hw_profiles.TilePlan) -> tuple[str, ...]:
  """What a plan of attention says of its grid and traffic."""
  traffic = plan.traffic
  assert isinstance(traffic, hw_profiles.AttentionTraffic)
  blocks, heads = plan.grid
  return (
    f"programs: {blocks} blocks x {heads} heads, {traffic.state_updates:,} steps in all; resident "
    f"at once: {plan.resident_blocks}; waves: {plan.waves}, {plan.tail_efficiency:.0%} full",
    f"working set: {cells.kib(traffic.working_set_bytes)} KiB; traffic: "
    f"streamed {cells.mib(traffic.kv_read_bytes)} + kept {cells.mib(traffic.q_read_bytes)} + "
    f"written {cells.mib(traffic.o_write_bytes)} = {cells.mib(traffic.total_bytes)} MiB, "
    f"{traffic.intensity:.1f} FLOP/B; needed once {cells.mib(traffic.required_bytes)} MiB, scores "
    f"in memory would add {cells.mib(traffic.unfused_intermediate_bytes)} MiB",
  )


FLASH_ATTENTION = FlashAttention()
