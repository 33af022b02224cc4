"""What attention is to be computed: sizes, dtypes and mask, without arrays."""

import dataclasses
from typing import Protocol

from hw_profiles import dtypes
from hw_profiles.arguments import as_int, whole_field
from hw_profiles.attention.mask import CAUSAL_ALIGNMENTS, AttentionMask

RESIDUAL_BYTES = 4  # a float32 log-sum-exp for each query


@dataclasses.dataclass(frozen=True)
class AttentionProblem:
  """O[b, h] = softmax(scale·Q[b, h]·K[b, g]ᵀ + mask)·V[b, g], g = ⌊h·kv_heads / heads⌋.

  Attributes:
    batch: Sequences.
    seq_q: Queries of a sequence.
    seq_kv: Keys and values of a sequence.
    heads: Query heads, a multiple of `kv_heads`.
    kv_heads: Key and value heads; None: `heads`.
    head_dim: Elements of a query and of a key.
    value_dim: Elements of a value and of an output; None: `head_dim`.
    causal: Whether a query sees no key after its own position.
    causal_alignment: "top_left" or "bottom_right": see `AttentionMask`. Needed
      where there is a causal mask or a window and seq_q != seq_kv.
    window: Keys seen on each side of the query's own position, (left, right),
      None for all; an int w means (w, w).
    dtype: Of Q, K and V by name.
    out_dtype: Of O; None: `dtype`.
    backward: True: the gradients of Q, K and V from that of O, with O and the
      log-sum-exp given; False: O and the log-sum-exp.
  """

  batch: int
  seq_q: int
  seq_kv: int
  heads: int
  kv_heads: int | None = None
  head_dim: int = 128
  value_dim: int | None = None
  causal: bool = False
  causal_alignment: str | None = None
  window: int | tuple[int | None, int | None] | None = None
  dtype: str = "bfloat16"
  out_dtype: str | None = None
  backward: bool = False

  def __post_init__(self) -> None:
    for name in ("batch", "seq_q", "seq_kv"):
      whole_field(self, name, 0)
    check_heads(self)
    for name in ("causal", "backward"):
      if not isinstance(getattr(self, name), bool):
        raise ValueError(f"AttentionProblem.{name}={getattr(self, name)!r}: expected True or False")
    if self.causal_alignment not in (None, *CAUSAL_ALIGNMENTS):
      raise ValueError(
        f"AttentionProblem.causal_alignment={self.causal_alignment!r}: expected None,"
        " 'top_left' or 'bottom_right'"
      )
    self._check_window()
    masked = self.causal or self.window_sides != (None, None)
    if masked and self.causal_alignment is None and self.seq_q != self.seq_kv:
      raise ValueError(
        f"AttentionProblem.causal_alignment=None: with seq_q={self.seq_q} and"
        f" seq_kv={self.seq_kv} expected 'top_left' (query 0 is at key 0) or 'bottom_right' (the"
        " last query is at the last key)"
      )
    dtypes.size_bytes(self.dtype)
    if self.out_dtype is not None:
      dtypes.size_bytes(self.out_dtype, name="out_dtype")

  def _check_window(self) -> None:
    if self.window is None:
      return
    window = (
      tuple(as_int(side) for side in self.window)
      if isinstance(self.window, tuple)
      else as_int(self.window)
    )
    object.__setattr__(self, "window", window)
    sides = window if isinstance(window, tuple) else (window, window)
    whole = all(
      side is None or (isinstance(side, int) and not isinstance(side, bool) and side >= 0)
      for side in sides
    )
    if len(sides) != 2 or not whole:
      raise ValueError(
        f"AttentionProblem.window={window!r}: expected keys to the left and to the right, integers"
        " of at least 0 or None, for example (1023, 0)"
      )

  @property
  def window_sides(self) -> tuple[int | None, int | None]:
    """The window as (left, right)."""
    if self.window is None:
      return (None, None)
    return self.window if isinstance(self.window, tuple) else (self.window, self.window)

  @property
  def op_name(self) -> str:
    """ "flash_attention" or "flash_attention_backward"."""
    return "flash_attention_backward" if self.backward else "flash_attention"

  @property
  def mask(self) -> AttentionMask:
    """Which keys a query sees."""
    left, right = self.window_sides
    return AttentionMask(
      seq_q=self.seq_q,
      seq_kv=self.seq_kv,
      left=left,
      right=0 if self.causal else right,
      shift=self.seq_kv - self.seq_q if self.causal_alignment == "bottom_right" else 0,
    )

  @property
  def key_heads(self) -> int:
    """Key and value heads."""
    return self.heads if self.kv_heads is None else self.kv_heads

  @property
  def group(self) -> int:
    """Query heads that share a key head."""
    return self.heads // self.key_heads

  @property
  def output_dim(self) -> int:
    """Elements of a value and of an output."""
    return self.head_dim if self.value_dim is None else self.value_dim

  @property
  def result_dtype(self) -> str:
    """The dtype O is stored in."""
    return self.dtype if self.out_dtype is None else self.out_dtype

  @property
  def is_empty(self) -> bool:
    """Whether no query sees a key, or there is no query at all."""
    return self.batch == 0 or self.mask.visible_pairs() == 0

  @property
  def flops(self) -> int:
    """2·(head_dim + value_dim) for each visible pair; backward five products instead of two.

    Backward computes S and dP = dO·Vᵀ again, then dV, dK and dQ: 2.5 times the
    forward where both sizes are equal, which is how the field counts it,
    however often a kernel computes S.
    """
    pairs = self.batch * self.heads * self.mask.visible_pairs()
    if self.backward:
      return 2 * pairs * (3 * self.head_dim + 2 * self.output_dim)
    return 2 * pairs * (self.head_dim + self.output_dim)

  @property
  def query_bytes(self) -> int:
    """Q of all heads."""
    rows = self.batch * self.seq_q * self.heads
    return rows * self.head_dim * dtypes.size_bytes(self.dtype)

  @property
  def summed_query_bytes(self) -> int:
    """A float32 array of the query's shape."""
    return self.batch * self.seq_q * self.heads * self.head_dim * 4

  @property
  def key_value_bytes(self) -> int:
    """K and V of all heads."""
    rows = self.batch * self.seq_kv * self.key_heads
    return rows * (self.head_dim + self.output_dim) * dtypes.size_bytes(self.dtype)

  @property
  def output_bytes(self) -> int:
    """O of all heads, without the log-sum-exp."""
    rows = self.batch * self.seq_q * self.heads
    return rows * self.output_dim * dtypes.size_bytes(self.result_dtype)

  @property
  def residual_bytes(self) -> int:
    """The float32 log-sum-exp of each query."""
    return self.batch * self.seq_q * self.heads * RESIDUAL_BYTES

  @property
  def once_through_bytes(self) -> int:
    """Bytes that any program must move: inputs read once, results written once."""
    forward = self.query_bytes + self.key_value_bytes + self.output_bytes
    if not self.backward:
      return forward
    # dO in, and dQ, dK, dV out as large as Q, K, V
    gradients = self.query_bytes + self.key_value_bytes + self.output_bytes
    return forward + gradients + self.residual_bytes


class _Headed(Protocol):
  """A problem of attention."""

  @property
  def heads(self) -> int:
    """Query heads."""
    ...

  @property
  def kv_heads(self) -> int | None:
    """Key and value heads; None: `heads`."""
    ...


def check_heads(problem: _Headed) -> None:
  """Raises ValueError unless heads and head sizes are integers that go together."""
  for name in ("heads", "head_dim"):
    whole_field(problem, name, 1)
  for name in ("value_dim", "kv_heads"):
    if getattr(problem, name) is not None:
      whole_field(problem, name, 1)
  if problem.kv_heads is not None and problem.heads % problem.kv_heads:
    raise ValueError(
      f"{type(problem).__name__}.kv_heads={problem.kv_heads}: expected a divisor of"
      f" heads={problem.heads}"
    )
