"""O = softmax(scale·Q·Kᵀ + mask)·V, forward and backward, as the benchmark sees it."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hw_profiles import AttentionConfig, AttentionProblem
from pallas_kernels.benchmark.ops.attention import FLOAT_DTYPES, AttentionOp
from pallas_kernels.benchmark.ops.attention_peers import PeerMask, peer
from pallas_kernels.benchmark.ops.attention_sample import AttentionSample
from pallas_kernels.benchmark.ops.gradients import with_gradients
from pallas_kernels.benchmark.ops.op import Function, Operands, Shape, option
from pallas_kernels.benchmark.ops.verdict import Verdict, together

if TYPE_CHECKING:
  import pallas_kernels

# Of a run with gradients, after the result.
_GRADIENTS = ("d_query", "d_key", "d_value")


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

  @property
  def key_heads(self) -> int:
    """Key and value heads."""
    return self.heads if self.kv_heads is None else self.kv_heads

  @property
  def output_dim(self) -> int:
    """Elements of a value and of an output."""
    return self.head_dim if self.value_dim is None else self.value_dim


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
  backward: bool = option(
    False,
    "The gradients of query, key and value: instead of the result in a plan, with it and behind it"
    " in a run, as in training.",
    tasks=("plan", "run", "numerics"),
  )
  out_dtype: str | None = option(
    None, "Result dtype; left out: the operands'", choices=FLOAT_DTYPES, tasks=("plan",)
  )

  @property
  def sides(self) -> tuple[int | None, int | None] | None:
    """The window; None: there is none."""
    return None if self.window is None else _sides(self.window)


class FlashAttention(AttentionOp[FlashAttentionShape, AttentionConfig, FlashAttentionOptions]):
  """`pallas_kernels.flash_attention`."""

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
  dtypes = (*FLOAT_DTYPES, "float8_e4m3fn")
  planned_dtypes = ("float8_e4m3fn",)

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
      window=options.sides,
      dtype=dtype,
      out_dtype=options.out_dtype,
      backward=options.backward,
    )

  def counted_flops(self, shape: FlashAttentionShape, options: FlashAttentionOptions) -> int:
    """Of visible pairs, a run with gradients 3.5 times the forward where head sizes are equal."""
    forward = dataclasses.replace(options, backward=False)
    passes = (forward, options) if options.backward else (forward,)
    return sum(self.problem(shape, self.dtypes[0], one).flops for one in passes)

  def check_flops(self, shape: FlashAttentionShape) -> int:
    """Two products of float64 and their bounds, for each pair that is compared."""
    whole = self.flops(shape)
    judged = self._sample(shape, FlashAttentionOptions()).pairs
    return 4 * whole * judged // max(shape.batch * shape.heads * shape.seq_q * shape.seq_kv, 1)

  def once_through_bytes(
    self, shape: FlashAttentionShape, dtype: str, options: FlashAttentionOptions
  ) -> int:
    """Inputs read once, results written once; of both passes in a run with gradients."""
    forward = self.problem(shape, dtype, dataclasses.replace(options, backward=False))
    if not options.backward:
      return forward.once_through_bytes
    return forward.once_through_bytes + self.problem(shape, dtype, options).once_through_bytes

  def steps(self, shape: FlashAttentionShape, config: AttentionConfig) -> tuple[int, int]:
    """A program for each block of queries of a head, a step for each block of keys."""
    blocks = -(-shape.seq_q // config.block_q)
    return shape.batch * shape.heads * blocks, -(-shape.seq_kv // config.block_kv)

  # --- operands

  def operand_shapes(
    self, shape: FlashAttentionShape, options: FlashAttentionOptions
  ) -> tuple[tuple[int, ...] | None, ...]:
    """Q, K, V and, with gradients, that of the result."""
    queries, keys = (
      (shape.batch, shape.seq_q, shape.heads),
      (
        shape.batch,
        shape.seq_kv,
        shape.key_heads,
      ),
    )
    return (
      (*queries, shape.head_dim),
      (*keys, shape.head_dim),
      (*keys, shape.output_dim),
      (*queries, shape.output_dim) if options.backward else None,
    )

  def checked_operands(self, operands: Operands, options: FlashAttentionOptions) -> Operands:
    """With gradients: the result's is 0 at queries that are not compared.

    Those then add exact zeros to the gradients of keys and values, which the
    compared queries alone decide.
    """
    if not options.backward:
      return operands
    *rest, d_out = operands
    return (*rest, self.judged(operands, options).only_these(d_out))

  # --- a part of the result

  def sample(self, shape: FlashAttentionShape) -> FlashAttentionShape:
    """The heads of one key head of one sequence; all queries, for where they lie is what masks."""
    return dataclasses.replace(
      shape, batch=min(shape.batch, 1), heads=shape.heads // shape.key_heads, kv_heads=1
    )

  def cut(self, operands: Operands, part: FlashAttentionShape) -> Operands:
    """The first heads and key heads of the first sequences."""
    q, k, v, d_out = operands

    def first(array: Any, heads: int) -> Any:
      return None if array is None else array[: part.batch, :, :heads]

    return (
      first(q, part.heads),
      first(k, part.key_heads),
      first(v, part.key_heads),
      first(d_out, part.heads),
    )

  def cut_result(self, result: Any, part: FlashAttentionShape) -> Any:
    """The first heads of the first sequences."""
    return result[: part.batch, :, : part.heads]

  def describe_part(self, part: FlashAttentionShape, whole: FlashAttentionShape) -> str:
    """Heads and sequences."""
    return f"heads 0:{part.heads} of sequences 0:{part.batch}"

  # --- what runs

  def arguments(
    self, operands: tuple[Any, ...], options: FlashAttentionOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """flash_attention(query, key, value, is_causal=..., ...)."""
    return operands[:3], {
      "is_causal": options.causal,
      "causal_alignment": options.causal_alignment,
      "local_window_size": options.sides,
    }

  def explain(
    self,
    shape: FlashAttentionShape,
    dtype: str,
    options: FlashAttentionOptions,
    *,
    config: AttentionConfig | None,
    implementation: str | None,
  ) -> "pallas_kernels.Explanation":
    """As the base class; with gradients a note that the plan is of one of both passes."""
    found = super().explain(shape, dtype, options, config=config, implementation=implementation)
    if not options.backward:
      return found
    note = "measured with gradients: the result's pass and theirs; predicted is one of both"
    return dataclasses.replace(found, notes=(*found.notes, note))

  def call(
    self,
    options: FlashAttentionOptions,
    *,
    config: AttentionConfig | None,
    implementation: str | None,
  ) -> Function:
    """out of (query, key, value, d_out); with gradients (out, d_query, d_key, d_value)."""
    forward = super().call(options, config=config, implementation=implementation)
    return _with_gradients(forward) if options.backward else forward

  def peer(self, name: str, options: FlashAttentionOptions) -> Function:
    """One of `attention_peers`, and its own gradients."""
    attention = peer(
      name,
      PeerMask(
        causal=options.causal,
        window=options.sides,
        bottom_right=options.causal_alignment == "bottom_right",
      ),
    )

    def forward(query: Any, key: Any, value: Any, d_out: Any) -> Any:
      del d_out
      return attention(query, key, value)

    return _with_gradients(forward) if options.backward else forward

  def judged(self, operands: tuple[Any, ...], options: FlashAttentionOptions) -> AttentionSample:
    """Some queries of some heads where there are many pairs."""
    q, k = operands[:2]
    return self._sample(
      FlashAttentionShape(
        batch=q.shape[0],
        seq_q=q.shape[1],
        seq_kv=k.shape[1],
        heads=q.shape[2],
        kv_heads=k.shape[2],
      ),
      options,
    )

  def _sample(self, shape: FlashAttentionShape, options: FlashAttentionOptions) -> AttentionSample:
    problem = self.problem(shape, self.dtypes[0], options)
    return AttentionSample.of(
      mask=problem.mask, batch=problem.batch, key_heads=problem.key_heads, group=problem.group
    )

  def check(
    self,
    actual: Any,
    operands: Operands,
    options: FlashAttentionOptions,
    *,
    ran: str,
    config: AttentionConfig | None,
    platform: str,
  ) -> Verdict:
    """`reference.check_flash_attention`, and the gradients within their bound.

    `operands` are those of `checked_operands`. What is summed in another order
    than the tile's is bounded by any order's error, so the tile plays no part.
    """
    import reference
    from pallas_kernels import dispatch, names

    del config
    sample = self.judged(operands, options)
    q, k, v, d_out = operands
    kept = sample.of_queries(q), sample.of_keys(k), sample.of_keys(v)
    mask = sample.visible()
    accumulate = dispatch.accumulation(ran, kept[0].dtype.name, platform)
    out = actual[0] if options.backward else actual
    found = reference.check_flash_attention(
      sample.of_queries(out), *kept, mask=mask, out_dtype=kept[0].dtype, accumulate=accumulate
    )
    verdicts = [sample.judge_queries(found.out, "out")]
    notes = sample.note()
    if options.backward and ran not in names.IMPLEMENTATIONS:
      notes += (f"gradients not checked: what {ran} rounds on the way is not known",)
    elif options.backward:
      bounds = reference.bounded_attention_gradients(
        *kept, sample.of_queries(d_out), mask=mask, accumulate=accumulate
      )
      for name, gradient, bound in zip(_GRADIENTS, actual[1:], bounds[:3], strict=True):
        of_queries = name == "d_query"
        taken = sample.of_queries(gradient) if of_queries else sample.of_keys(gradient)
        judge = sample.judge_queries if of_queries else sample.judge_keys
        verdicts.append(judge(reference.check_within(taken, bound.round(taken.dtype)), name))
    return together(verdicts, notes)


def _with_gradients(forward: Function) -> Function:
  """(out, d_query, d_key, d_value) of operands whose last, which `forward` ignores, is out's."""
  return with_gradients(lambda query, key, value: forward(query, key, value, None))


FLASH_ATTENTION = FlashAttention()
