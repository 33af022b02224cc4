"""Attention's results held against the definition, within the derived bound."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from reference.accumulation import Accumulate
from reference.attention.bound import AttentionModel
from reference.attention.decode import decode_operands
from reference.attention.problem import AttentionOptions, AttentionProblem, WindowSize
from reference.bounded import Bounded
from reference.judge import Block, ErrorCheck, assert_passed, asserting, check_blocks


@dataclasses.dataclass(frozen=True)
class AttentionCheck:
  """How attention's results compare with the exact ones.

  Attributes:
    passed: Both are within their bounds.
    out: The output.
    residual: The residual; None: it was not given.
  """

  passed: bool
  out: ErrorCheck
  residual: ErrorCheck | None


def check_flash_attention(
  actual: npt.ArrayLike,
  query: npt.ArrayLike,
  key: npt.ArrayLike,
  value: npt.ArrayLike,
  bias: npt.ArrayLike | None = None,
  mask: npt.ArrayLike | None = None,
  *,
  residual: npt.ArrayLike | None = None,
  out_dtype: npt.DTypeLike | None = None,
  p_dtype: npt.DTypeLike | None = None,
  accumulate: Accumulate = "ieee",
  accumulation_chunk: int | None = None,
  block_kv: int | None = None,
  num_splits: int = 1,
  flush_subnormals: bool = True,
  progress: Callable[[int, int], None] | None = None,
  **options: Unpack[AttentionOptions],
) -> AttentionCheck:
  """Compares a kernel's attention with `flash_attention_exact`, element by element.

  `attention_error_bound` bounds it. Works through some rows of a head at a
  time.

  Args:
    actual: The kernel's output, [B, T, N, Hv].
    query: As in `attention_error_bound`, as all others but:
    key: [B, S, K, H].
    value: [B, S, K, Hv].
    bias: What broadcasts to [B, N, T, S].
    mask: bool, the same.
    residual: The kernel's residual, float32 [B, T, N]; None: not compared.
    out_dtype: Expected dtype of `actual`; None: whatever it has.
    p_dtype: Dtype of the probabilities in the second product.
    accumulate: How both products are summed.
    accumulation_chunk: Keys summed on their own.
    block_kv: Keys of a block.
    num_splits: Parts of the keys.
    flush_subnormals: Whether subnormals may be replaced by zero.
    progress: Called as progress(elements done, elements in all) of the output.
    **options: `AttentionOptions`.

  Returns:
    The comparison; it does not raise for a wrong result.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  problem = AttentionProblem.create(query, key, value, bias, mask, options)
  out = np.asarray(actual)
  model = AttentionModel.create(
    problem,
    out_dtype=out.dtype if out_dtype is None else out_dtype,
    p_dtype=p_dtype,
    accumulate=accumulate,
    accumulation_chunk=accumulation_chunk,
    block_kv=block_kv,
    num_splits=num_splits,
    flush_subnormals=flush_subnormals,
  )
  if out.shape != problem.out_shape:
    raise ValueError(f"actual.shape={out.shape}: expected {problem.out_shape}")
  if out.dtype != model.out_format.dtype:
    raise ValueError(f"actual.dtype={out.dtype}: expected out_dtype={model.out_format.name}")
  sums = None if residual is None else np.asarray(residual)
  expected = problem.out_shape[:3], np.dtype(np.float32)
  if sums is not None and (sums.shape, sums.dtype) != expected:
    raise ValueError(
      f"residual: shape {sums.shape}, {sums.dtype}; expected {problem.out_shape[:3]}, float32"
    )
  residual_blocks: list[tuple[Block, Bounded]] = []

  def blocks() -> Iterator[tuple[Block, Bounded]]:
    for part in problem.head_rows():
      bounded, bounded_residual = model.evaluate(part)
      if sums is not None:
        residual_blocks.append((part.query_index, bounded_residual))
      yield part.query_index, bounded

  out_check = check_blocks(out, blocks(), progress=progress)
  residual_check = None if sums is None else check_blocks(sums, residual_blocks)
  passed = out_check.passed and (residual_check is None or residual_check.passed)
  return AttentionCheck(passed, out_check, residual_check)


def check_decode_attention(
  actual: npt.ArrayLike,
  query: npt.ArrayLike,
  key_cache: npt.ArrayLike,
  value_cache: npt.ArrayLike,
  lengths: npt.ArrayLike,
  *,
  scale: float | None = None,
  local_window_size: WindowSize | None = None,
  logits_soft_cap: float | None = None,
  page_table: npt.ArrayLike | None = None,
  residual: npt.ArrayLike | None = None,
  **how: Any,
) -> AttentionCheck:
  """Compares a kernel's decode step with `decode_attention`; as `check_flash_attention`.

  Args:
    actual: The kernel's output, of the query's shape with Hv for H.
    query: As in `decode_attention`, as all others but:
    key_cache: [B, S, K, H] or pages.
    value_cache: The same with Hv.
    lengths: [B].
    scale: Factor of the dot products.
    local_window_size: Keys seen around a query's own.
    logits_soft_cap: c in c·tanh(logits / c).
    page_table: [B, pages].
    residual: The kernel's residual, of the query's shape without H.
    **how: What `check_flash_attention` takes from `out_dtype` to `progress`.

  Raises:
    ValueError: a shape, a dtype or an option is wrong.
  """
  q, k, v, options = decode_operands(
    query,
    key_cache,
    value_cache,
    lengths,
    scale=scale,
    local_window_size=local_window_size,
    logits_soft_cap=logits_soft_cap,
    page_table=page_table,
  )
  out, sums = np.asarray(actual), None if residual is None else np.asarray(residual)
  if np.ndim(query) == 3:
    out, sums = out[:, None], None if sums is None else sums[:, None]
  return check_flash_attention(out, q, k, v, residual=sums, **how, **options)


def assert_attention(check: AttentionCheck) -> AttentionCheck:
  """The check itself, for further assertions.

  Raises:
    AssertionError: the output or the residual is past its bound; says which,
      as `assert_passed`.
  """
  for what, found in (("out", check.out), ("residual", check.residual)):
    if found is not None:
      try:
        assert_passed(found)
      except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None
  return check


assert_flash_attention_close = asserting(check_flash_attention, assert_attention)
assert_decode_attention_close = asserting(check_decode_attention, assert_attention)
