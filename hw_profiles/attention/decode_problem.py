"""What decode attention is to be computed: a few queries a sequence on its key/value cache."""

import dataclasses
import functools
from collections import Counter

from hw_profiles import dtypes
from hw_profiles.arguments import as_int, at_least, ceil_div, whole_field
from hw_profiles.attention.mask import AttentionMask
from hw_profiles.attention.problem import check_heads
from hw_profiles.frozen_map import FrozenMap

PAGE_INDEX_BYTES = 4  # an int32 entry of the page table


@dataclasses.dataclass(frozen=True)
class DecodeProblem:
  """O[b, h] = softmax(scale·Q[b, h]·K[b, g]ᵀ)·V[b, g] over the keys in the cache.

  The last query of a sequence is at its last key; query heads of one key head
  are computed together, as rows of one tile.

  Attributes:
    batch: Sequences.
    seq_kv: Keys of each sequence in the cache; with `lengths` the capacity.
    heads: Query heads, a multiple of `kv_heads`.
    kv_heads: Key and value heads; None: `heads`.
    head_dim: Elements of a query and of a key.
    value_dim: Elements of a value and of an output; None: `head_dim`.
    seq_q: Queries of a sequence: 1, or more when tokens are guessed ahead.
    lengths: Keys of each sequence, at most `seq_kv`; None: all of them.
    window: Keys seen before the query's own; None: all.
    page_size: Keys of a page; None: a sequence's keys lie one after another.
    dtype: Of Q, K and V by name.
    out_dtype: Of O; None: `dtype`.
  """

  batch: int
  seq_kv: int
  heads: int
  kv_heads: int | None = None
  head_dim: int = 128
  value_dim: int | None = None
  seq_q: int = 1
  lengths: tuple[int, ...] | None = None
  window: int | None = None
  page_size: int | None = None
  dtype: str = "bfloat16"
  out_dtype: str | None = None

  def __post_init__(self) -> None:
    whole_field(self, "batch", 0)
    whole_field(self, "seq_kv", 0)
    whole_field(self, "seq_q", 1)
    check_heads(self)
    if self.lengths is not None:
      self._check_lengths(self.lengths)
    if self.window is not None:
      whole_field(self, "window", 0)
    if self.page_size is not None:
      whole_field(self, "page_size", 1)
    dtypes.size_bytes(self.dtype)
    if self.out_dtype is not None:
      dtypes.size_bytes(self.out_dtype, name="out_dtype")

  def _check_lengths(self, lengths: object) -> None:
    if not isinstance(lengths, tuple) or len(lengths) != self.batch:
      raise ValueError(
        f"DecodeProblem.lengths={lengths!r}: expected a tuple of {self.batch} lengths, one a"
        " sequence"
      )
    lengths = tuple(as_int(length) for length in lengths)
    object.__setattr__(self, "lengths", lengths)
    for index, length in enumerate(lengths):
      at_least(f"DecodeProblem.lengths[{index}]", length, 0)
      if isinstance(length, int) and length > self.seq_kv:
        raise ValueError(
          f"DecodeProblem.lengths[{index}]={length}: expected at most seq_kv={self.seq_kv}"
        )

  @functools.cached_property
  def sequences_by_length(self) -> FrozenMap[int, int]:
    """How many sequences have each number of keys."""
    if self.lengths is None:
      return FrozenMap({self.seq_kv: self.batch} if self.batch else {})
    return FrozenMap(Counter(self.lengths))

  def mask(self, length: int) -> AttentionMask:
    """Which of a sequence's `length` keys its queries see."""
    return AttentionMask(
      seq_q=self.seq_q, seq_kv=length, left=self.window, right=0, shift=length - self.seq_q
    )

  @property
  def key_heads(self) -> int:
    """Key and value heads."""
    return self.heads if self.kv_heads is None else self.kv_heads

  @property
  def rows(self) -> int:
    """Rows of a tile: the queries of all heads that share a key head."""
    return self.seq_q * (self.heads // self.key_heads)

  @property
  def output_dim(self) -> int:
    """Elements of a value and of an output."""
    return self.head_dim if self.value_dim is None else self.value_dim

  @property
  def result_dtype(self) -> str:
    """The dtype O is stored in."""
    return self.dtype if self.out_dtype is None else self.out_dtype

  @property
  def visible_keys(self) -> int:
    """Keys that are read, all sequences together."""
    total = 0
    for length, sequences in self.sequences_by_length.items():
      seen = self.mask(length).key_blocks(0, block_q=self.seq_q, block_kv=1)
      total += sequences * seen.visited
    return total

  @property
  def flops(self) -> int:
    """2·(head_dim + value_dim) for each visible pair."""
    pairs = sum(
      sequences * self.mask(length).visible_pairs()
      for length, sequences in self.sequences_by_length.items()
    )
    return 2 * self.heads * pairs * (self.head_dim + self.output_dim)

  @property
  def key_value_bytes(self) -> int:
    """K and V of the visible keys, each read once, and the page table where there is one."""
    size = dtypes.size_bytes(self.dtype)
    read = self.visible_keys * self.key_heads * (self.head_dim + self.output_dim) * size
    return read + self.page_table_bytes

  @property
  def page_table_bytes(self) -> int:
    """An entry for each page that holds a key."""
    if self.page_size is None:
      return 0
    return PAGE_INDEX_BYTES * sum(
      sequences * ceil_div(length, self.page_size)
      for length, sequences in self.sequences_by_length.items()
    )

  @property
  def query_output_bytes(self) -> int:
    """Q in and O out."""
    elements = self.batch * self.seq_q * self.heads
    return elements * (
      self.head_dim * dtypes.size_bytes(self.dtype)
      + self.output_dim * dtypes.size_bytes(self.result_dtype)
    )

  @property
  def once_through_bytes(self) -> int:
    """Bytes that any program must move."""
    return self.key_value_bytes + self.query_output_bytes
