"""The kernels of a step, as problems that the planner knows, in the order they run."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from hw_profiles.attention.decode_problem import DecodeProblem
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.matmul.problem import MatmulProblem
from hw_profiles.rowwise.problem import RmsNormProblem, SwigluProblem
from hw_profiles.whole_request.sizes import ModelSizes, RequestSizes

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")


@dataclasses.dataclass(frozen=True)
class Stage:
  """One kernel of a step.

  Attributes:
    name: What it is for; unique within a program.
    part: What it is a part of: stages of one part are what fusing them replaces.
    problem: What the planner is asked.
    calls: How often a step calls it.
  """

  name: str
  part: str
  problem: Any
  calls: int


@dataclasses.dataclass(frozen=True)
class Step:
  """A pass over the prompt, or a token for each sequence.

  Attributes:
    stages: Its kernels, each once.
    order: Their names in the order of the calls, a name for each call.
  """

  stages: tuple[Stage, ...]
  order: tuple[str, ...]

  def __post_init__(self) -> None:
    for stage in self.stages:
      assert self.order.count(stage.name) == stage.calls, stage.name


def _matmul(m: int, k: int, n: int, dtype: str) -> MatmulProblem:
  return MatmulProblem(m=m, k=k, n=n, dtype=dtype)


def _projections(
  model: ModelSizes, rows: int, dtype: str, fused: bool
) -> Iterator[tuple[str, str, Any]]:
  """Name, part and problem of what makes queries, keys and values."""
  query, key = model.query_width, model.key_width
  if fused:
    yield "qkv", "qkv", _matmul(rows, model.hidden, query + 2 * key, dtype)
    return
  yield "query", "qkv", _matmul(rows, model.hidden, query, dtype)
  yield "key", "qkv", _matmul(rows, model.hidden, key, dtype)
  yield "value", "qkv", _matmul(rows, model.hidden, key, dtype)


def _ffn(model: ModelSizes, rows: int, dtype: str, fused: bool) -> Iterator[tuple[str, str, Any]]:
  """Name, part and problem of silu(x·gate)·(x·up)."""
  if fused:
    yield (
      "gate_up",
      "ffn",
      MatmulProblem(
        m=rows, k=model.hidden, n=model.ffn, dtype=dtype, products=2, activation="silu"
      ),
    )
    return
  yield "gate", "ffn", _matmul(rows, model.hidden, model.ffn, dtype)
  yield "up", "ffn", _matmul(rows, model.hidden, model.ffn, dtype)
  yield "swiglu", "ffn", SwigluProblem(rows, model.ffn, dtype)


def step(
  model: ModelSizes,
  request: RequestSizes,
  phase: Phase,
  *,
  dtype: str = "bfloat16",
  fused: bool = True,
  cached: int = 0,
) -> Step:
  """The kernels of the prompt's pass, or of the decode step that sees `cached` keys.

  A layer is an RMSNorm, the products for queries, keys and values, attention, its
  output product, an RMSNorm, the gated products and the one back. Residuals are
  added by the norm that follows; the last norm and the product that scores the
  words (if the model has a `vocab`) see one row a sequence. Fused, queries, keys
  and values are one product, and so are the gated ones with their activation: 7
  kernels a layer instead of 11.

  Args:
    model: Sizes.
    request: Sizes.
    phase: "prefill" or "decode".
    dtype: Of weights and activations.
    fused: Whether products that read one operand are one kernel.
    cached: Keys that a decode step sees, its own token's among them.
  """
  rows = request.batch * (request.prompt if phase == "prefill" else 1)
  attention: AttentionProblem | DecodeProblem
  if phase == "prefill":
    attention = AttentionProblem(
      batch=request.batch,
      seq_q=request.prompt,
      seq_kv=request.prompt,
      heads=model.heads,
      kv_heads=model.key_heads,
      head_dim=model.head_size,
      causal=True,
      dtype=dtype,
    )
  else:
    attention = DecodeProblem(
      batch=request.batch,
      seq_kv=cached,
      heads=model.heads,
      kv_heads=model.key_heads,
      head_dim=model.head_size,
      dtype=dtype,
    )
  norm = RmsNormProblem(rows, model.hidden, dtype, residual=True)
  inside = [
    *_projections(model, rows, dtype, fused),
    ("attention", "attention", attention),
    ("output", "output", _matmul(rows, model.query_width, model.hidden, dtype)),
    ("norm", "norm", norm),
    *_ffn(model, rows, dtype, fused),
    ("down", "down", _matmul(rows, model.ffn, model.hidden, dtype)),
  ]
  last = dataclasses.replace(norm, rows=request.batch)
  outside: list[tuple[str, str, Any]] = [("last_norm", "norm", last)]
  if model.vocab is not None:
    scores = _matmul(request.batch, model.hidden, model.vocab, dtype)
    outside.append(("logits", "logits", scores))
  names = tuple(name for name, _, _ in inside)
  order = (
    "first_norm",
    *names,
    *(("norm", *names) * (model.layers - 1)),
    *(name for name, _, _ in outside),
  )
  first = ("first_norm", "norm", dataclasses.replace(norm, residual=False))
  return Step(
    stages=tuple(
      Stage(name, part, problem, order.count(name))
      for name, part, problem in (first, *inside, *outside)
    ),
    order=order,
  )
