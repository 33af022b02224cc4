"""What a request is: a decoder's sizes, tokens in and out, what the host takes."""

import dataclasses
from typing import Any

from hw_profiles import dtypes
from hw_profiles.arguments import not_negative, whole_field

# Every kernel of a step is walked in order, once for each what-if: a second or so for so many.
MOST_LAYERS = 10_000


def _described(instance: Any) -> str:
  """`name=value` of the fields that are not at their default."""
  return ",".join(
    f"{field.name}={getattr(instance, field.name)}"
    for field in dataclasses.fields(instance)
    if getattr(instance, field.name) != field.default
  )


def _shortest(value: float) -> str:
  """A text that is read as just this number."""
  return repr(float(value)).removesuffix(".0")


@dataclasses.dataclass(frozen=True)
class ModelSizes:
  """A decoder of equal layers: grouped attention, then a gated FFN, each after an RMSNorm.

  Attributes:
    layers: Layers, at most `MOST_LAYERS`.
    hidden: Width between the layers.
    ffn: Width inside the FFN.
    heads: Query heads.
    kv_heads: Key and value heads, a divisor of `heads`; None: `heads`.
    head_dim: Elements of a query, a key and a value; None: hidden / heads.
    vocab: Words that the last product scores; None: that product is left out.
  """

  layers: int
  hidden: int
  ffn: int
  heads: int
  kv_heads: int | None = None
  head_dim: int | None = None
  vocab: int | None = None

  def __post_init__(self) -> None:
    for name in ("layers", "hidden", "ffn", "heads"):
      whole_field(self, name, 1)
    if self.layers > MOST_LAYERS:
      raise ValueError(
        f"ModelSizes.layers={self.layers}: expected at most {MOST_LAYERS}, since every kernel of a"
        " step is walked"
      )
    for name in ("kv_heads", "head_dim", "vocab"):
      if getattr(self, name) is not None:
        whole_field(self, name, 1)
    if self.heads % self.key_heads:
      raise ValueError(
        f"ModelSizes.kv_heads={self.kv_heads}: expected a divisor of heads={self.heads}"
      )
    if self.head_dim is None and self.hidden % self.heads:
      raise ValueError(
        f"ModelSizes.head_dim=None: hidden={self.hidden} is no multiple of heads={self.heads};"
        " give head_dim"
      )

  @property
  def key_heads(self) -> int:
    """Key and value heads."""
    return self.heads if self.kv_heads is None else self.kv_heads

  @property
  def head_size(self) -> int:
    """Elements of a query, a key and a value."""
    return self.hidden // self.heads if self.head_dim is None else self.head_dim

  @property
  def query_width(self) -> int:
    """Columns of the queries of all heads, and of the attention's output."""
    return self.heads * self.head_size

  @property
  def key_width(self) -> int:
    """Columns of the keys of all key heads, and of the values."""
    return self.key_heads * self.head_size

  @property
  def projection_weights(self) -> int:
    """Elements of every matrix that a token is multiplied with.

    layers·hidden·(2·query width + 2·key width + 3·ffn) + hidden·vocab; the
    embedding is looked up and not multiplied.
    """
    layer = self.hidden * (2 * self.query_width + 2 * self.key_width + 3 * self.ffn)
    return self.layers * layer + self.hidden * (self.vocab or 0)

  def cache_bytes(self, tokens: int, dtype: str) -> int:
    """Keys and values of all layers for so many tokens."""
    return 2 * self.layers * tokens * self.key_width * dtypes.size_bytes(dtype)

  def describe(self) -> str:
    """The sizes as `--model` takes them, defaults left out."""
    return _described(self)


@dataclasses.dataclass(frozen=True)
class RequestSizes:
  """Sequences that run together, all of one length.

  Attributes:
    prompt: Tokens of each prompt.
    output: Tokens generated for each; the first comes from the prompt's pass.
    batch: Sequences.
  """

  prompt: int
  output: int
  batch: int = 1

  def __post_init__(self) -> None:
    for name in ("prompt", "output", "batch"):
      whole_field(self, name, 1)

  @property
  def decode_steps(self) -> int:
    """Steps after the prompt's pass."""
    return self.output - 1

  @property
  def cached_tokens(self) -> int:
    """Tokens whose keys and values are kept at the end, all sequences together."""
    return self.batch * (self.prompt + self.decode_steps)

  def describe(self) -> str:
    """The sizes as `--request` takes them, defaults left out."""
    return _described(self)


@dataclasses.dataclass(frozen=True)
class HostTimes:
  """What the host takes: assumptions, of which no profile has a measured one.

  Attributes:
    launch_us: Preparing and submitting one kernel. The course texts have 5 us.
    replay_us: Replaying a recorded graph, its metadata included. Theirs: 5 us.
    compile_ms: Compiling the programs of one prompt length. Theirs: 100 ms.
  """

  launch_us: float = 5.0
  replay_us: float = 5.0
  compile_ms: float = 100.0

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      not_negative(f"HostTimes.{field.name}", getattr(self, field.name))

  def describe(self) -> str:
    """The times as `--host` takes them, all of them."""
    return ",".join(
      f"{field.name}={_shortest(getattr(self, field.name))}" for field in dataclasses.fields(self)
    )
