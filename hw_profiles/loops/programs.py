"""Nests of the usual operators, and how they are usually tiled."""

from hw_profiles.loops.nest import LoopNest, stage
from hw_profiles.loops.operations import ABSOLUTE, COPY, MULTIPLY, QUANTIZE, SILU
from hw_profiles.loops.transform import compute_at, reorder, split


def matmul_nest(*, m: int, k: int, n: int, dtype: str = "bfloat16") -> LoopNest:
  """C[i, j] = Σ_k A[i, k]·W[k, j], rounded once, in loops i, j, k.

  Raises:
    ValueError: a size is below 1.
  """
  matmul = stage(
    "matmul",
    "C[i, j]",
    MULTIPLY,
    ["A[i, k]", "W[k, j]"],
    extents={"i": m, "j": n, "k": k},
    combine="sum",
    rounding=dtype,
  )
  return LoopNest((matmul,), {"A": dtype, "W": dtype, "C": dtype})


def matmul_silu_nest(*, m: int, k: int, n: int, dtype: str = "bfloat16") -> LoopNest:
  """Y = silu(C) after C = A·W: two loop nests, C rounded to `dtype` between them.

  Raises:
    ValueError: a size is below 1.
  """
  product = matmul_nest(m=m, k=k, n=n, dtype=dtype)
  activation = stage("activation", "Y[i, j]", SILU, ["C[i, j]"], extents={"i": m, "j": n})
  return LoopNest((*product.stages, activation), {**product.dtypes, "Y": dtype})


def tile_stage(nest: LoopNest, name: str, blocks: dict[str, int]) -> LoopNest:
  """Splits loops of a stage and runs the outer ones outside, in the order of `blocks`.

  Example: {"i": 64, "j": 64, "k": 32} gives loops io, jo, ko, ii, ji, ki.

  Args:
    nest: What is changed.
    name: The stage.
    blocks: Loop to factor; loops not named stay innermost.

  Raises:
    ValueError: no such stage or loop, or a factor below 1.
  """
  for loop, factor in blocks.items():
    nest = split(nest, name, loop, factor)
  rest = [loop for loop in nest.stage(name).order if loop[:-1] not in blocks]
  outer, inner = [f"{loop}o" for loop in blocks], [f"{loop}i" for loop in blocks]
  return reorder(nest, name, [*outer, *inner, *rest])


def fused_matmul_silu_nest(
  *,
  m: int,
  k: int,
  n: int,
  block_m: int,
  block_n: int,
  block_k: int,
  dtype: str = "bfloat16",
) -> LoopNest:
  """`matmul_silu_nest` tiled, each tile of C computed where silu needs it.

  Tiles io, jo of Y; in each, C over chunks ko of K, then silu of the tile: C
  never exists as a whole.

  Raises:
    ValueError: a size or block is below 1.
  """
  nest = matmul_silu_nest(m=m, k=k, n=n, dtype=dtype)
  nest = tile_stage(nest, "activation", {"i": block_m, "j": block_n})
  nest = split(nest, "matmul", "k", block_k)
  nest = reorder(nest, "matmul", ["ko", "i", "j", "ki"])
  return compute_at(nest, "matmul", "activation", "jo")


def quantized_projection_nest(*, m: int, k: int, n: int, dtype: str = "float16") -> LoopNest:
  """Row maxima of |A|, A quantised to e4m3 by them, and the product with W.

  R[i] = max_k |A[i, k]|, Q[i, k] = e4m3(A[i, k]·448 / R[i]), C = Q·W.

  Raises:
    ValueError: a size is below 1.
  """
  rows = stage(
    "row_maximum", "R[i]", ABSOLUTE, ["A[i, k]"], extents={"i": m, "k": k}, combine="max"
  )
  quantize = stage(
    "quantize",
    "Q[i, k]",
    QUANTIZE,
    ["A[i, k]", "R[i]"],
    extents={"i": m, "k": k},
    rounding="float8_e4m3fn",
  )
  matmul = stage(
    "matmul",
    "C[i, j]",
    MULTIPLY,
    ["Q[i, k]", "W[k, j]"],
    extents={"i": m, "j": n, "k": k},
    combine="sum",
  )
  quantized = "float8_e4m3fn"
  return LoopNest(
    (rows, quantize, matmul),
    {"A": dtype, "R": "float32", "Q": quantized, "W": quantized, "C": dtype},
  )


def transpose_nest(*, rows: int, columns: int, dtype: str = "float16") -> LoopNest:
  """B[j, i] = A[i, j].

  Raises:
    ValueError: a size is below 1.
  """
  transpose = stage("transpose", "B[j, i]", COPY, ["A[i, j]"], extents={"i": rows, "j": columns})
  return LoopNest((transpose,), {"A": dtype, "B": dtype})
