"""Attention of a few queries a sequence on its key/value cache, as the benchmark sees it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hw_profiles import DecodeConfig, DecodeProblem
from pallas_kernels.benchmark.ops.attention import FLOAT_DTYPES, AttentionOp
from pallas_kernels.benchmark.ops.attention_peers import PeerMask, peer
from pallas_kernels.benchmark.ops.attention_sample import AttentionSample
from pallas_kernels.benchmark.ops.op import Function, Operands, Shape, draw_on_device, option
from pallas_kernels.benchmark.ops.verdict import Verdict, together

# No kernel splits a sequence into parts of less than so many keys.
_FEWEST_KEYS_OF_A_PART = 64
_PAGE_SEED = 3


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

  @property
  def key_heads(self) -> int:
    """Key and value heads."""
    return self.heads if self.kv_heads is None else self.kv_heads

  @property
  def output_dim(self) -> int:
    """Elements of a value and of an output."""
    return self.head_dim if self.value_dim is None else self.value_dim


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeOptions:
  """The options of decode attention that are flags."""

  page_size: int | None = option(
    None, "Keys of a page; left out: a sequence's keys lie one after another.", read=int
  )
  out_dtype: str | None = option(
    None, "Result dtype; left out: the operands'", choices=FLOAT_DTYPES, tasks=("plan",)
  )


class DecodeAttention(AttentionOp[DecodeShape, DecodeConfig, DecodeOptions]):
  """`pallas_kernels.decode_attention`, all sequences at their full length."""

  name = "decode_attention"
  shape_class = DecodeShape
  # One layer of Qwen3-8B for 8 sequences of 8192 tokens.
  default_shape = DecodeShape(batch=8, seq_kv=8192, heads=32, kv_heads=8)
  config_class = DecodeConfig
  default_tiles = (DecodeConfig(64), DecodeConfig(128), DecodeConfig(512))
  options_class = DecodeOptions
  dtypes = FLOAT_DTYPES

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

  def once_through_bytes(self, shape: DecodeShape, dtype: str, options: DecodeOptions) -> int:
    """K and V read once, Q in and O out."""
    return self.problem(shape, dtype, options).once_through_bytes

  def check_flops(self, shape: DecodeShape) -> int:
    """Two products of float64 and their bounds, for each pair that is compared."""
    pairs = self._sample(shape).pairs
    return 4 * 2 * pairs * (shape.head_dim + shape.output_dim)

  def steps(self, shape: DecodeShape, config: DecodeConfig) -> tuple[int, int]:
    """A program for each part of a key head's keys, a step for each block of them."""
    parts = config.num_splits or 1
    blocks = -(-shape.seq_kv // config.block_kv)
    return shape.batch * shape.key_heads * parts, -(-blocks // parts)

  # --- operands

  def operand_shapes(
    self, shape: DecodeShape, options: DecodeOptions
  ) -> tuple[tuple[int, ...] | None, ...]:
    """Q, the keys and values, lengths and, with pages, where they are."""
    lead, table = (shape.batch, shape.seq_kv), None
    if options.page_size is not None:
      each = -(-shape.seq_kv // options.page_size)
      lead, table = (shape.batch * each, options.page_size), (shape.batch, each)
    return (
      (shape.batch, shape.seq_q, shape.heads, shape.head_dim),
      (*lead, shape.key_heads, shape.head_dim),
      (*lead, shape.key_heads, shape.output_dim),
      (shape.batch,),
      table,
    )

  def operands(self, shape: DecodeShape, dtype: str, options: DecodeOptions) -> Operands:
    """Normal queries and cache; full lengths; pages in random order."""
    drawn = super().operands(shape, dtype, options)
    return (*drawn[:3], *self._places(shape, options))

  def abstract_operands(
    self, shape: DecodeShape, dtype: str, options: DecodeOptions
  ) -> tuple[Any, ...]:
    """As the base class, with the integers'."""
    import jax

    floats = super().abstract_operands(shape, dtype, options)[:3]
    return (
      *floats,
      *(
        None if x is None else jax.ShapeDtypeStruct(x.shape, x.dtype)
        for x in self._places(shape, options)
      ),
    )

  def device_operands(self, shape: DecodeShape, dtype: str, options: DecodeOptions) -> Any:
    """As `operands`, with the floats drawn on the device."""
    floats = self.abstract_operands(shape, dtype, options)[:3]
    return (*draw_on_device(floats), *self._places(shape, options))

  def _places(self, shape: DecodeShape, options: DecodeOptions) -> tuple[Any, Any]:
    """Lengths, and the page table or None."""
    import numpy as np

    lengths = np.full((shape.batch,), shape.seq_kv, np.int32)
    table = self.operand_shapes(shape, options)[4]
    if table is None:
      return lengths, None
    pages = np.random.default_rng(_PAGE_SEED).permutation(table[0] * table[1])
    return lengths, pages.astype(np.int32).reshape(table)

  # --- a part of the result

  def sample(self, shape: DecodeShape) -> DecodeShape:
    """The first sequence."""
    return dataclasses.replace(shape, batch=min(shape.batch, 1))

  def cut(self, operands: Operands, part: DecodeShape) -> Operands:
    """The first sequences; all pages, of which the table takes theirs."""
    q, k, v, lengths, table = operands

    def first(array: Any) -> Any:
      return None if array is None else array[: part.batch]

    cache = (k, v) if table is not None else (first(k), first(v))
    return first(q), *cache, first(lengths), first(table)

  def cut_result(self, result: Any, part: DecodeShape) -> Any:
    """The first sequences."""
    return result[: part.batch]

  def describe_part(self, part: DecodeShape, whole: DecodeShape) -> str:
    """Sequences."""
    return f"sequences 0:{part.batch}"

  # --- what runs

  def arguments(
    self, operands: tuple[Any, ...], options: DecodeOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """decode_attention(query, key_cache, value_cache, lengths, page_table=...)."""
    return operands[:4], {"page_table": operands[4]}

  def peer(self, name: str, options: DecodeOptions) -> Function:
    """One of `attention_peers`, of all keys there are: none takes pages here."""
    if options.page_size is not None:
      raise NotImplementedError(f"peer {name}: no page table in its call here")
    attention = peer(name, PeerMask())

    def run(query: Any, key: Any, value: Any, lengths: Any, table: Any) -> Any:
      del lengths, table
      if query.shape[1] > 1:
        raise NotImplementedError(f"peer {name}: seq_q={query.shape[1]}, no causal mask there")
      return attention(query, key, value)

    return run

  def judged(self, operands: tuple[Any, ...], options: DecodeOptions) -> AttentionSample:
    """Some heads where there are many pairs."""
    q, k, _, lengths, _ = operands
    return self._sample(
      DecodeShape(
        batch=q.shape[0],
        seq_kv=int(max(lengths, default=0)),
        heads=q.shape[2],
        kv_heads=k.shape[2],
        seq_q=q.shape[1],
      )
    )

  def _sample(self, shape: DecodeShape) -> AttentionSample:
    problem = self.problem(shape, self.dtypes[0], DecodeOptions())
    return AttentionSample.of(
      mask=problem.mask(shape.seq_kv),
      batch=shape.batch,
      key_heads=shape.key_heads,
      group=shape.heads // shape.key_heads,
    )

  def check(
    self,
    actual: Any,
    operands: Operands,
    options: DecodeOptions,
    *,
    ran: str,
    config: DecodeConfig | None,
    platform: str,
  ) -> Verdict:
    """`reference.check_flash_attention` of the keys in order, as many parts merged as may be."""
    import reference
    from pallas_kernels import dispatch

    sample = self.judged(operands, options)
    q, k, v, _, table = operands
    caches: tuple[Any, Any] = (k, v)
    keys = sample.mask.seq_kv
    if table is not None:
      caches = _InOrder(k, table, keys), _InOrder(v, table, keys)
    kept = (sample.of_queries(q), sample.of_keys(caches[0]), sample.of_keys(caches[1]))
    found = reference.check_flash_attention(
      sample.of_queries(actual),
      *kept,
      mask=sample.visible(),
      out_dtype=kept[0].dtype,
      accumulate=dispatch.accumulation(ran, kept[0].dtype.name, platform),
      num_splits=_most_parts(keys, ran, config),
    )
    return together([sample.judge_queries(found.out, "out")], sample.note())


def _most_parts(keys: int, ran: str, config: DecodeConfig | None) -> int:
  """Parts that a sequence's keys may have been cut into, whole blocks each."""
  if ran in ("xla", "interpret") and (config is None or config.num_splits is None):
    return 1
  if config is not None and config.num_splits is not None:
    return config.num_splits
  block = _FEWEST_KEYS_OF_A_PART if config is None else config.block_kv
  return max(-(-keys // block), 1)


class _InOrder:
  """A paged cache as [B][S, K, D], gathered when a sequence is asked for."""

  def __init__(self, cache: Any, table: Any, keys: int) -> None:
    """`keys` of each sequence."""
    self._cache, self._table, self._keys = cache, table, keys

  def __getitem__(self, sequence: int) -> Any:
    """[S, K, D]."""
    found = self._cache[self._table[sequence]]
    return found.reshape(-1, *found.shape[2:])[: self._keys]


DECODE_ATTENTION = DecodeAttention()
