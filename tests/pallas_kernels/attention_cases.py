"""Attention calls as data: their operands, and results held against derived bounds."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from pallas_kernels import AttentionConfig, dispatch, flash_attention

TILE = AttentionConfig(
  16, 16, block_q_dkv=16, block_kv_dkv=16, block_q_dq=16, block_kv_dq=16, num_warps=4
)
IMPLEMENTATIONS = [
  "xla",
  "interpret",
  *(pytest.param(name, id=f"{name}-gpu", marks=pytest.mark.gpu) for name in ("triton", "xla")),
]


@functools.cache
def _quick_options() -> dict[str, Any]:
  """Interpreted kernels are large programs, run once: most of the time is spent optimising them."""
  if jax.default_backend() != "cpu":
    return {}
  options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
  try:
    jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
  except jax.errors.JaxRuntimeError:
    # jaxlib 0.11 has the first only
    del options["xla_cpu_use_fusion_emitters"]
  return options


def quick(function: Any) -> Any:
  """`function` compiled with little effort on a CPU."""
  return jax.jit(function, compiler_options=_quick_options())


@dataclasses.dataclass(frozen=True)
class Case:
  """One call.

  Attributes:
    sizes: Batch, T, S, N, K, H, Hv.
    dtype: Of query, key and value.
    bias: Shape of a bias.
    mask: Shape of a mask; a third of it is False.
    lengths: Used queries and keys of each sequence.
    segments: Number of segments that each sequence is packed from.
    options: All else that `flash_attention` takes.
  """

  name: str
  sizes: tuple[int, int, int, int, int, int, int]
  dtype: str = "float32"
  bias: tuple[int, ...] | None = None
  mask: tuple[int, ...] | None = None
  lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
  segments: int | None = None
  options: dict[str, Any] = dataclasses.field(default_factory=dict)

  def __str__(self) -> str:
    return f"{self.name}-{self.dtype}"

  def arrays(self, rng: np.random.Generator) -> dict[str, Any]:
    """Operands by name; those that the case has none of are left out."""
    batch, seq_q, seq_kv, heads, kv_heads, size, value_size = self.sizes

    def normal(*shape: int, dtype: str = self.dtype) -> jax.Array:
      # rounded by NumPy, to the same bits: nothing is compiled for it
      return jnp.asarray(rng.standard_normal(shape).astype(np.float32).astype(jnp.dtype(dtype)))

    found = {
      "query": normal(batch, seq_q, heads, size),
      "key": normal(batch, seq_kv, kv_heads, size),
      "value": normal(batch, seq_kv, kv_heads, value_size),
    }
    if self.bias is not None:
      found["bias"] = normal(*self.bias, dtype="float32")
    if self.mask is not None:
      found["mask"] = jnp.asarray(rng.random(self.mask) < 2 / 3)
    if self.lengths is not None:
      found["query_seq_lengths"] = jnp.asarray(self.lengths[0], jnp.int32)
      found["key_value_seq_lengths"] = jnp.asarray(self.lengths[1], jnp.int32)
    if self.segments is not None:
      for name, length in (("query_segment_ids", seq_q), ("key_value_segment_ids", seq_kv)):
        ids = np.sort(rng.integers(0, self.segments, (batch, length)), axis=1)
        found[name] = jnp.asarray(ids, jnp.int32)
    return found

  def call(self, implementation: str, **more: Any) -> Any:
    """arrays -> (out, residual)."""
    options = {**self.options, **more}
    if implementation != "xla":
      options.setdefault("config", tile_for(implementation))
    return functools.partial(
      flash_attention, **options, return_residual=True, implementation=implementation
    )


def assert_seeds_example(
  implementation: str, dtype: str, *, block: int, config: AttentionConfig | None, size: int = 16
) -> None:
  """Values 1, 3 and 5 of weights 1, 2 and 4, in three blocks of keys: 1, 7/3 and 27/7 as rationals.

  Logits are 0, ln 2 and 2·ln 2, as a scale of ln 2 and keys of 0, 1 and 2 give them, so that the
  weights are powers of 2, and every block moves the maximum. All other keys are at -512·ln 2: even
  with the largest value they are nothing to a float64. Causal rows see one, two or all blocks.
  """
  length = 3 * block
  first = [0, block, 2 * block]
  positions, values = np.full(length, -512.0), np.full(length, 7.0)
  positions[first], values[first] = [0, 1, 2], [1, 3, 5]
  query, key, value = np.zeros((3, 1, length, 1, size), jnp.dtype(dtype))
  query[..., 0] = 1
  key[0, :, 0, 0] = positions
  value[:] = values[None, :, None, None]
  options = {"scale": float(np.log(2)), "is_causal": True}
  case = Case("seed", (1, length, length, 1, 1, size, size), dtype, options=options)
  arrays = {"query": jnp.asarray(query), "key": jnp.asarray(key), "value": jnp.asarray(value)}
  result = quick(case.call(implementation, config=config))(**arrays)
  assert_inside_bound(case, arrays, result, implementation)
  out = np.asarray(result[0], np.float64)[0, :, 0, 0]
  rational = np.repeat([1, 7 / 3, 27 / 7], block)
  online = implementation != "xla"
  if implementation.endswith("interpret") or (online and dtype != "float32"):
    # nothing is rounded but the quotient, and a float32 next to it is the same in 16 bits
    np.testing.assert_array_equal(out, np.asarray(jnp.asarray(rational, dtype), np.float64))
    return
  # XLA's weights are divided first, and a GPU's float32 quotient is within 2 ulp
  positional, named = split(case, arrays)
  exact = reference.flash_attention_exact(*positional, **named)[0][0, :, 0, 0]
  assert np.all(np.abs(exact - rational) <= 16 * np.finfo(np.float64).eps)
  bound = reference.attention_error_bound(
    *positional, out_dtype=dtype, accumulate=accumulates(implementation, dtype), **named
  )[0][0, :, 0, 0]
  assert np.all(np.abs(out - rational) <= bound + np.abs(exact - rational))


def packed_cases(
  kinds: dict[str, tuple[int | None, tuple[float, ...] | None, dict[str, Any]]],
  lengths: tuple[tuple[int, int], ...],
) -> list[Case]:
  """Three sequences with lengths or segments, at three head sizes.

  Args:
    kinds: By name: segments, the share of each sequence that is used, options.
    lengths: Queries and keys of a sequence.
  """
  return [
    Case(
      f"{name} {both} {sizes}",
      (3, *both, *heads, *sizes),
      dtype,
      segments=segments,
      lengths=None if share is None else tuple(tuple(int(x * one) for x in share) for one in both),
      options=options,
    )
    for name, (segments, share, options) in kinds.items()
    for both in lengths
    for sizes, heads, dtype in (
      ((64, 64), (4, 2), "bfloat16"),
      ((128, 128), (4, 1), "float16"),
      ((72, 40), (2, 2), "bfloat16"),
    )
  ]


def with_an_id_that_comes_back(arrays: dict[str, Any], start: int) -> dict[str, Any]:
  """The first segment's id once more from `start` on, in the second sequence."""
  found = dict(arrays)
  for name in ("query_segment_ids", "key_value_segment_ids"):
    found[name] = found[name].at[1, start:].set(found[name][1, 0])
  return found


def with_nan_in_unused_slots(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
  """Query, key and value with NaN past the used lengths."""
  assert case.lengths is not None
  found = dict(arrays)
  for name, used in (("query", 0), ("key", 1), ("value", 1)):
    for batch, length in enumerate(case.lengths[used]):
      found[name] = found[name].at[batch, length:].set(np.nan)
  return found


def tile_for(implementation: str) -> AttentionConfig | None:
  """Small blocks for the interpreter, so that there is more than one; else the planner's."""
  return TILE if implementation == "interpret" else None


def numpy_of(arrays: dict[str, Any]) -> dict[str, Any]:
  """The same as NumPy arrays."""
  return {name: np.asarray(x) for name, x in arrays.items()}


def split(case: Case, arrays: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
  """Positional arguments and options as the reference takes them."""
  found = numpy_of(arrays)
  positional = tuple(found.pop(name, None) for name in ("query", "key", "value", "bias", "mask"))
  options = {k: v for k, v in case.options.items() if k != "precision"}
  return positional, {**found, **options}


def accumulates(implementation: str, dtype: str) -> str:
  """How an implementation adds up on this machine."""
  return dispatch.accumulation(implementation, dtype, jax.default_backend())


def assert_inside_bound(
  case: Case, arrays: dict[str, Any], result: tuple[Any, Any], implementation: str
) -> None:
  """Out and residual are within the derived bound of float64."""
  positional, options = split(case, arrays)
  reference.assert_flash_attention_close(
    np.asarray(result[0]),
    *positional,
    residual=np.asarray(result[1]),
    out_dtype=arrays["query"].dtype,
    accumulate=accumulates(implementation, case.dtype),
    **options,
  )


def assert_gradients_inside_bound(
  case: Case,
  arrays: dict[str, Any],
  d_out: Any,
  actual: dict[str, Any],
  implementation: str,
  *,
  d_residual: Any = None,
) -> None:
  """Every gradient is within the derived bound of float64."""
  bounds = bounded_gradients(case, arrays, d_out, implementation, d_residual=d_residual)
  for name, gradient in actual.items():
    assert gradient.dtype == arrays[name].dtype
    assert_within(name, gradient, bounds[name])


def bounded_gradients(
  case: Case, arrays: dict[str, Any], d_out: Any, implementation: str, *, d_residual: Any = None
) -> dict[str, reference.Bounded]:
  """What each gradient may be, not rounded to anything yet."""
  positional, options = split(case, arrays)
  bounds = reference.bounded_attention_gradients(
    *positional[:3],
    np.asarray(d_out),
    *positional[3:],
    d_residual=None if d_residual is None else np.asarray(d_residual),
    accumulate=accumulates(implementation, case.dtype),
    **options,
  )
  return {name: bound for name, bound in bounds._asdict().items() if bound is not None}


def assert_within(name: str, gradient: Any, bound: reference.Bounded) -> None:
  """A gradient is one that `bound`, rounded to its dtype, allows; an error names the operand."""
  try:
    reference.assert_within(np.asarray(gradient), bound.round(gradient.dtype))
  except AssertionError as error:
    raise AssertionError(f"d_{name}: {error}") from None
