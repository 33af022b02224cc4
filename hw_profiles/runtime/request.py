"""A whole request: how often each shape is called, and what a faster kernel saves of it."""

import dataclasses
from collections.abc import Sequence

from hw_profiles.arguments import at_least, collection, not_negative, positive
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.runtime.amdahl import amdahl
from hw_profiles.runtime.change import time_change


@dataclasses.dataclass(frozen=True)
class GenerationCalls:
  """Calls of an operator that every layer runs once a step.

  Attributes:
    decode_steps: Steps after prefill, which yields the first token by itself.
    prefill_calls: Calls on all tokens of the prompt.
    decode_calls: Calls on one token.
    calls: Both.
    prefill_row_visits: Rows of all prefill calls, a token counting once a layer.
    decode_row_visits: Rows of all decode calls.
  """

  decode_steps: int
  prefill_calls: int
  decode_calls: int
  calls: int
  prefill_row_visits: int
  decode_row_visits: int


def generation_calls(
  *, layers: int, prompt_tokens: int, output_tokens: int, batch: int = 1
) -> GenerationCalls:
  """prefill = layers; decode = layers·(output tokens - 1).

  Example: 36 layers, 7239 tokens in and 32 out: 36 + 1116 = 1152 calls; prefill
  visits 260604 rows, decode 1116: thirty-one times the calls, far less work.

  Args:
    layers: Layers that call the operator.
    prompt_tokens: Tokens of each prompt.
    output_tokens: Tokens generated for each.
    batch: Sequences that run together.

  Raises:
    ValueError: an argument below 1.
  """
  at_least("layers", layers, 1)
  at_least("prompt_tokens", prompt_tokens, 1)
  at_least("output_tokens", output_tokens, 1)
  at_least("batch", batch, 1)
  decode_calls = layers * (output_tokens - 1)
  return GenerationCalls(
    decode_steps=output_tokens - 1,
    prefill_calls=layers,
    decode_calls=decode_calls,
    calls=layers + decode_calls,
    prefill_row_visits=layers * prompt_tokens * batch,
    decode_row_visits=decode_calls * batch,
  )


@dataclasses.dataclass(frozen=True)
class CallClass:
  """Calls of one shape, before and after a change.

  Attributes:
    name: For example "decode".
    calls: In one request.
    before_us: Time of one call.
    after_us: Time of one call with the change.
    exposed_fraction: Share of its time that the request waits for: 1 where nothing
      runs beside it, 0 off the critical path.
    before_first_token: Whether it comes before the first output.
  """

  name: str
  calls: int
  before_us: float
  after_us: float
  exposed_fraction: float = 1.0
  before_first_token: bool = False

  def __post_init__(self) -> None:
    prefix = f"CallClass({self.name!r})"
    at_least(f"{prefix}.calls", self.calls, 0)
    for field in ("before_us", "after_us", "exposed_fraction"):
      not_negative(f"{prefix}.{field}", getattr(self, field))
    if self.exposed_fraction > 1:
      raise ValueError(f"{prefix}.exposed_fraction={self.exposed_fraction}: expected at most 1")

  @classmethod
  def from_totals(
    cls,
    name: str,
    *,
    calls: int,
    total_before_us: float,
    total_after_us: float,
    exposed_fraction: float = 1.0,
    before_first_token: bool = False,
  ) -> "CallClass":
    """The class whose calls take these times together, as a trace reports them.

    Raises:
      ValueError: no call, or an argument out of range.
    """
    at_least("calls", calls, 1)
    return cls(
      name,
      calls,
      total_before_us / calls,
      total_after_us / calls,
      exposed_fraction,
      before_first_token,
    )

  @property
  def total_before_us(self) -> float:
    """Time of all calls before the change."""
    return self.calls * self.before_us

  @property
  def total_after_us(self) -> float:
    """Time of all calls after it."""
    return self.calls * self.after_us

  @property
  def saved_us(self) -> float:
    """What all calls save; negative where they become slower."""
    return self.calls * (self.before_us - self.after_us)

  @property
  def speedup(self) -> float:
    """Of one call."""
    return time_change(before_us=self.before_us, after_us=self.after_us).speedup

  def bytes_per_s(self, bytes_per_call: float) -> float:
    """Bandwidth one call reaches before the change.

    Near the memory's own no other schedule of the same traffic can be faster.

    Raises:
      ValueError: `bytes_per_call` below 0, or calls that take no time.
    """
    not_negative("bytes_per_call", bytes_per_call)
    positive(f"CallClass({self.name!r}).before_us", self.before_us)
    return bytes_per_call / self.before_us * 1e6


@dataclasses.dataclass(frozen=True)
class RequestSaving:
  """What a change of one operator does to a request.

  Attributes:
    before_us: Time of all its calls.
    after_us: The same with the change.
    saved_us: What the request saves: calls times saving times exposure.
    saved_by: Class to its part of `saved_us`.
    first_token_saved_us: The part of it that comes before the first token.
    hotspot_fraction: Share of the request that waits for these calls.
    bound: Speedup of the request if they took no time at all.
    request_after_us: Time of the request with the change.
    speedup: Of the request.
  """

  before_us: float
  after_us: float
  saved_us: float
  saved_by: FrozenMap[str, float]
  first_token_saved_us: float
  hotspot_fraction: float
  bound: float
  request_after_us: float
  speedup: float


def request_saving(classes: Sequence[CallClass], *, request_us: float) -> RequestSaving:
  """saved = Σ calls·(before - after)·exposed, over the shapes of one request.

  Example (Qwen3-8B, 7239 tokens in, 32 out): SwiGLU takes 11.22 ms in 36 prefill
  calls and 2.37 ms in 1116 decode calls, 1.6 % of a profiled window of 851 ms.
  With decode calls 2.6 times as fast and prefill as before the request saves 1.4
  ms, nothing of it before the first token; without the operator it would save
  13.6 ms, so no kernel can make it more than 1.016 times as fast. (Requests timed
  from outside took 817 ms: another run, so its share is not comparable.)

  Args:
    classes: The operator's calls, by shape.
    request_us: The request, before the change.

  Raises:
    ValueError: two classes of one name, or calls that the request waits for longer
      than it takes.
  """
  collection("classes", classes, CallClass)
  positive("request_us", request_us)
  saved_by: dict[str, float] = {}
  for calls in classes:
    if calls.name in saved_by:
      raise ValueError(f"classes: two are named {calls.name!r}; names must differ")
    saved_by[calls.name] = calls.saved_us * calls.exposed_fraction
  exposed_us = sum(calls.total_before_us * calls.exposed_fraction for calls in classes)
  if exposed_us > request_us:
    raise ValueError(
      f"request_us={request_us}: its calls alone take {exposed_us}; expected at least that"
    )
  saved_us = sum(saved_by.values())
  hotspot = amdahl(fraction=exposed_us / request_us)
  change = time_change(before_us=request_us, after_us=request_us - saved_us)
  return RequestSaving(
    before_us=sum(calls.total_before_us for calls in classes),
    after_us=sum(calls.total_after_us for calls in classes),
    saved_us=saved_us,
    saved_by=FrozenMap(saved_by),
    first_token_saved_us=sum(saved_by[calls.name] for calls in classes if calls.before_first_token),
    hotspot_fraction=hotspot.fraction,
    bound=hotspot.bound,
    request_after_us=request_us - saved_us,
    speedup=change.speedup,
  )
