"""Quantise an operand before the matmul, or inside it for every column block."""

import dataclasses
import functools
from typing import Literal

from hw_profiles import dtypes
from hw_profiles.arguments import at_least
from hw_profiles.matmul.traffic import matmul_traffic

ScaleKind = Literal["row", "held_row", "fixed"]
SCALES: tuple[ScaleKind, ...] = ("row", "held_row", "fixed")


@dataclasses.dataclass(frozen=True)
class QuantizedProjectionTraffic:
  """What C = quantise(A)·B moves, with the quantisation fused or separate.

  Attributes:
    fused: Whether A is quantised inside the matmul.
    a_bytes: A as given.
    quantized_a_bytes: A quantised.
    b_bytes: B, quantised already.
    c_bytes: C.
    scale_pass_read_bytes: A, read to find the scales of its rows (fused), or to
      quantise it (separate).
    quantize_write_bytes: A quantised, written; 0 where fused.
    a_read_bytes: A, quantised or not, read by all tiles of C.
    scale_bytes: Scales written and read; 0 unless a `scale_dtype` is given.
    input_bytes: All of the above that moves.
    b_read_bytes: B, read by all tiles of C.
    c_write_bytes: C, written.
    rest_bytes: These two.
    total_bytes: `input_bytes` and `rest_bytes`.
    grid: Row and column blocks of C.
    launches: Kernels.
    row_buffer_bytes: One row of A, kept from finding its scale to quantising it.
    accumulator_bytes: One tile of C.
  """

  fused: bool
  a_bytes: int
  quantized_a_bytes: int
  b_bytes: int
  c_bytes: int
  scale_pass_read_bytes: int
  quantize_write_bytes: int
  a_read_bytes: int
  scale_bytes: int
  input_bytes: int
  b_read_bytes: int
  c_write_bytes: int
  rest_bytes: int
  total_bytes: int
  grid: tuple[int, int]
  launches: int
  row_buffer_bytes: int
  accumulator_bytes: int


def quantized_projection_traffic(
  *,
  m: int,
  k: int,
  n: int,
  block_m: int,
  block_n: int,
  fuse: bool | None,
  in_dtype: str = "float16",
  quantized_dtype: str = "float8_e4m3fn",
  out_dtype: str | None = None,
  acc_dtype: str = "float32",
  scale: ScaleKind = "row",
  scale_dtype: str | None = None,
) -> QuantizedProjectionTraffic:
  """Fusing saves one write of the small A and pays with reads of the large one.

  With c = ⌈n/block_n⌉ column blocks, each reading A for itself:

      separate            in·mk + q·mk + c·q·mk
      fused, "row"        in·mk         + c·in·mk    a first pass finds the row maxima
      fused, "held_row"                   c·in·mk    each block holds its rows of A whole
      fused, "fixed"                      c·in·mk    the scale is known beforehand

  B is read once for each row block and C written once either way.

  With a scale from the row and a first pass, in = 2 and q = 1 bytes, both move
  4·mk at one column block: a tie, not the gain that a single block is sometimes
  credited with; from two blocks on fusing always moves more. Where the first
  pass falls away fusing moves less below three column blocks.

  Example: 4096 x 4096 float16 times 4096 x 1536 in 8 bits, 128 x 128 tiles:
  240 + 204 = 444 MiB separate, 416 + 204 = 620 MiB fused.

  Args:
    m: Rows of A and C; 0 or more, as k and n.
    k: Columns of A, rows of B.
    n: Columns of B and C.
    block_m: Rows of a tile of C, at least 1.
    block_n: Columns of a tile of C, at least 1.
    fuse: Whether to quantise inside the matmul; None: whichever moves fewer
      bytes, fused where they tie, since no quantised A is stored then.
    in_dtype: Of A.
    quantized_dtype: Of the quantised A and of B.
    out_dtype: Of C; None: `in_dtype`.
    acc_dtype: Of the accumulator.
    scale: Where the scale of a row comes from, as above; separate quantisation
      moves the same for each.
    scale_dtype: Counts the scales too: written once a row and read by each
      column block, unless "fixed" or held. None: not counted, being 1/k of A.

  Raises:
    ValueError: an argument is out of range or a dtype unknown.
  """
  if scale not in SCALES:
    raise ValueError(f"scale={scale!r}: expected one of {', '.join(SCALES)}")
  if not (fuse is None or isinstance(fuse, bool)):
    raise ValueError(f"fuse={fuse!r}: expected True, False or None")
  at_least("k", k, 0)
  sizes = {
    name: dtypes.size_bytes(dtype, name=name)
    for name, dtype in (
      ("in_dtype", in_dtype),
      ("quantized_dtype", quantized_dtype),
      ("scale_dtype", scale_dtype),
    )
    if dtype is not None
  }
  if fuse is None:
    with_fuse = functools.partial(
      quantized_projection_traffic,
      m=m,
      k=k,
      n=n,
      block_m=block_m,
      block_n=block_n,
      in_dtype=in_dtype,
      quantized_dtype=quantized_dtype,
      out_dtype=out_dtype,
      acc_dtype=acc_dtype,
      scale=scale,
      scale_dtype=scale_dtype,
    )
    fused, separate = with_fuse(fuse=True), with_fuse(fuse=False)
    return fused if fused.total_bytes <= separate.total_bytes else separate

  product = matmul_traffic(
    m=m,
    k=k,
    n=n,
    block_m=block_m,
    block_n=block_n,
    block_k=max(k, 1),
    in_dtype=quantized_dtype,
    acc_dtype=acc_dtype,
    out_dtype=out_dtype or in_dtype,
  )
  column_blocks = product.grid[1]
  a_bytes = m * k * sizes["in_dtype"]
  quantized_a_bytes = m * k * sizes["quantized_dtype"]
  first_pass = not fuse or scale == "row"
  scale_size = sizes.get("scale_dtype", 0)
  moves_scales = scale != "fixed" and first_pass
  scale_bytes = m * scale_size * (1 + column_blocks) if moves_scales else 0
  scale_pass = a_bytes if first_pass else 0
  quantize_write = 0 if fuse else quantized_a_bytes
  a_read = column_blocks * (a_bytes if fuse else quantized_a_bytes)
  input_bytes = scale_pass + quantize_write + a_read + scale_bytes
  rest = product.b_read_bytes + product.c_write_bytes
  return QuantizedProjectionTraffic(
    fused=fuse,
    a_bytes=a_bytes,
    quantized_a_bytes=quantized_a_bytes,
    b_bytes=k * n * sizes["quantized_dtype"],
    c_bytes=product.c_write_bytes,
    scale_pass_read_bytes=scale_pass,
    quantize_write_bytes=quantize_write,
    a_read_bytes=a_read,
    scale_bytes=scale_bytes,
    input_bytes=input_bytes,
    b_read_bytes=product.b_read_bytes,
    c_write_bytes=product.c_write_bytes,
    rest_bytes=rest,
    total_bytes=input_bytes + rest,
    grid=product.grid,
    launches=2 if first_pass else 1,
    row_buffer_bytes=k * sizes["in_dtype"],
    accumulator_bytes=product.accumulator_bytes,
  )
