"""The tiles that the sweep compiles: families of kernels over blocks, dtypes and settings."""

import itertools
from collections.abc import Iterator, Sequence

from hw_profiles.ascend import AscendTarget, get_target
from hw_profiles.ascend.agreement.rows import Case
from hw_profiles.frozen_map import FrozenMap

# one of each generation; the others of it have the same memories
TARGETS = ("ascend_910b3", "ascend_950pr")
_BLOCKS = (16, 32, 64, 128, 256, 512)
_STAGES = (1, 2)
_BOTH = (False, True)


def _gemm(
  family: str,
  op: str,
  *,
  sizes: tuple[int, int, int],
  depths: Sequence[int],
  dtypes: Sequence[str],
  options: dict[str, object],
  sub_blocks: Sequence[bool] | None,
) -> Iterator[Case]:
  m, k, n = sizes
  for block_m, block_n, block_k, dtype in itertools.product(_BLOCKS, _BLOCKS, depths, dtypes):
    for name, stages in itertools.product(TARGETS, _STAGES):
      target = get_target(name)
      for sub_block in sub_blocks or (target.default_sub_block,):
        yield Case(
          family=family,
          op=op,
          shapes=FrozenMap(m=m, k=k, n=n),
          dtype=dtype,
          config=FrozenMap(block_m=block_m, block_n=block_n, block_k=block_k, num_stages=stages),
          options=FrozenMap(options),
          target=target.name,
          multi_buffer=stages > 1,
          sub_block=sub_block,
        )


def _matmul() -> Iterator[Case]:
  yield from _gemm(
    "matmul",
    "matmul",
    sizes=(1024, 2048, 1024),
    depths=_BLOCKS,
    dtypes=("bfloat16", "float32"),
    options={},
    sub_blocks=None,
  )


def _matmul_ragged() -> Iterator[Case]:
  yield from _gemm(
    "matmul_ragged",
    "matmul",
    sizes=(1000, 2000, 1000),
    depths=(64,),
    dtypes=("bfloat16",),
    options={},
    sub_blocks=None,
  )


def _matmul_silu() -> Iterator[Case]:
  yield from _gemm(
    "matmul_silu",
    "matmul",
    sizes=(1024, 2048, 1024),
    depths=(64,),
    dtypes=("bfloat16", "float32"),
    options={"activation": "silu"},
    sub_blocks=_BOTH,
  )


def _gated_matmul() -> Iterator[Case]:
  yield from _gemm(
    "gated_matmul",
    "gated_matmul",
    sizes=(1024, 2048, 1024),
    depths=(64, 128, 256),
    dtypes=("bfloat16", "float32"),
    options={},
    sub_blocks=_BOTH,
  )


def _settings(stages: Sequence[int] = _STAGES) -> Iterator[tuple[AscendTarget, int]]:
  for name, count in itertools.product(TARGETS, stages):
    yield get_target(name), count


_BLOCK_ROWS = (1, 2, 4, 8, 16, 32, 64)
_BLOCK_COLS = (128, 256, 512, 1024, 2048, 4096)
_COLUMNS = 4096


def _rows(family: str, ops: Sequence[str]) -> Iterator[Case]:
  for op, block_rows, block_cols, dtype in itertools.product(
    ops, _BLOCK_ROWS, _BLOCK_COLS, ("bfloat16", "float32")
  ):
    for target, stages in _settings():
      yield Case(
        family=family,
        op=op,
        shapes=FrozenMap(rows=1024, columns=_COLUMNS),
        dtype=dtype,
        config=FrozenMap(block_rows=block_rows, block_cols=block_cols, num_stages=stages),
        options=FrozenMap(),
        target=target.name,
        multi_buffer=stages > 1,
        sub_block=target.default_sub_block,
      )


def _rowwise() -> Iterator[Case]:
  yield from _rows("rowwise", ("swiglu", "rms_norm", "transpose"))


def _quantize() -> Iterator[Case]:
  yield from _rows("quantize", ("quantize_rows", "swiglu_quantize"))


_Sequence = tuple[int, int, int]
"""Lengths of the queries and the keys, head size."""


def _attentions(
  family: str,
  sizes: Sequence[_Sequence],
  dtypes: Sequence[str],
  *,
  blocks: tuple[Sequence[int], Sequence[int]],
  both_sub_blocks: Sequence[str] = (),
  options: dict[str, object],
) -> Iterator[Case]:
  for block_q, block_kv, (seq_q, seq_kv, head_dim), dtype in itertools.product(
    *blocks, sizes, dtypes
  ):
    shapes = FrozenMap(batch=1, seq_q=seq_q, seq_kv=seq_kv, heads=2, kv_heads=1, head_dim=head_dim)
    for target, stages in _settings():
      for sub_block in _BOTH if dtype in both_sub_blocks else (target.default_sub_block,):
        yield Case(
          family=family,
          op="flash_attention",
          shapes=shapes,
          dtype=dtype,
          config=FrozenMap(block_q=block_q, block_kv=block_kv, num_stages=stages),
          options=FrozenMap(options),
          target=target.name,
          multi_buffer=stages > 1,
          sub_block=sub_block,
        )


def _attention() -> Iterator[Case]:
  yield from _attentions(
    "attention",
    [(1024, 2048, head_dim) for head_dim in (32, 64, 128, 256)],
    ("bfloat16", "float32"),
    blocks=((16, 32, 64, 128, 256), _BLOCKS),
    both_sub_blocks=("bfloat16",),
    options={},
  )
  yield from _attentions(
    "attention",
    [(2048, 4096, 128)],
    ("float16",),
    blocks=((16, 32, 64, 128, 256), _BLOCKS),
    options={},
  )


def _attention_causal() -> Iterator[Case]:
  blocks = ((16, 32, 64, 128), (16, 32, 64, 128, 256))
  causal: dict[str, object] = {"is_causal": True}
  sizes = [(2048, 2048, head_dim) for head_dim in (64, 128)]
  yield from _attentions(
    "attention_causal", sizes, ("bfloat16", "float32"), blocks=blocks, options=causal
  )
  yield from _attentions(
    "attention_causal", [(4096, 4096, 64)], ("float16",), blocks=blocks, options=causal
  )


FAMILIES = {
  "matmul": _matmul,
  "matmul_ragged": _matmul_ragged,
  "matmul_silu": _matmul_silu,
  "gated_matmul": _gated_matmul,
  "rowwise": _rowwise,
  "quantize": _quantize,
  "attention": _attention,
  "attention_causal": _attention_causal,
}
