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


def _attention() -> Iterator[Case]:
  for block_q, block_kv, head_dim, dtype in itertools.product(
    (16, 32, 64, 128, 256), (16, 32, 64, 128, 256, 512), (32, 64, 128, 256), ("bfloat16", "float32")
  ):
    shapes = FrozenMap(batch=1, seq_q=1024, seq_kv=2048, heads=2, kv_heads=1, head_dim=head_dim)
    for target, stages in _settings():
      for sub_block in _BOTH if dtype == "bfloat16" else (target.default_sub_block,):
        yield Case(
          family="attention",
          op="flash_attention",
          shapes=shapes,
          dtype=dtype,
          config=FrozenMap(block_q=block_q, block_kv=block_kv, num_stages=stages),
          options=FrozenMap(),
          target=target.name,
          multi_buffer=stages > 1,
          sub_block=sub_block,
        )


FAMILIES = {
  "matmul": _matmul,
  "matmul_ragged": _matmul_ragged,
  "matmul_silu": _matmul_silu,
  "gated_matmul": _gated_matmul,
  "rowwise": _rowwise,
  "quantize": _quantize,
  "attention": _attention,
}
