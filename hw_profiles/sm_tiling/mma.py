"""Matrix instructions of a tile: how many, of which shape, with which fragments."""

import dataclasses
from typing import Literal

from hw_profiles import dtypes
from hw_profiles.arguments import at_least, ceil_div, instance, round_up

MmaFamily = Literal["mma.sync", "wgmma", "tcgen05", "tcgen05.cta_group2", "cube"]

# All families multiply 32 bytes of K an instruction: 16 of bfloat16, 32 of
# int8, 8 of tfloat32. On Ascend that is the fractal's depth, C0.
K_BYTES = 32
FRACTAL_ROWS = 16
# tfloat32 is float32 in memory, rounded by the tensor core
_TFLOAT32_BYTES = 4
_TENSOR_CORE_DTYPES = (
  "bfloat16",
  "float16",
  "tfloat32",
  "float8_e4m3fn",
  "float8_e5m2",
  "int8",
)
_CUBE_DTYPES = ("bfloat16", "float16", "float32", "int8")


@dataclasses.dataclass(frozen=True)
class _Rule:
  """Shapes of one family: rows to the unit of columns, and the most columns."""

  column_unit_by_rows: dict[int, int]
  columns: tuple[int, int]  # fewest and most
  dtypes: tuple[str, ...]
  threads: int
  accumulator: Literal["registers", "tensor_memory", "L0C"]


_RULES: dict[str, _Rule] = {
  "mma.sync": _Rule({16: 8}, (8, 8), _TENSOR_CORE_DTYPES, 32, "registers"),
  "wgmma": _Rule({64: 8}, (8, 256), _TENSOR_CORE_DTYPES, 128, "registers"),
  "tcgen05": _Rule({128: 16, 64: 8}, (8, 256), _TENSOR_CORE_DTYPES, 1, "tensor_memory"),
  "tcgen05.cta_group2": _Rule(
    {256: 16, 128: 16}, (16, 256), _TENSOR_CORE_DTYPES, 1, "tensor_memory"
  ),
  "cube": _Rule({FRACTAL_ROWS: FRACTAL_ROWS}, (16, 16), _CUBE_DTYPES, 0, "L0C"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MmaShape:
  """One matrix instruction: m x k times k x n.

  Attributes:
    m: Rows of C.
    n: Columns of C.
    k: Depth.
    threads: That issue it together: a warp's 32, a warpgroup's 128, 1 for
      tcgen05; 0 for a cube core, which has none.
    accumulator: Where the m x n results are: "registers" of those threads,
      "tensor_memory" or "L0C".
  """

  m: int
  n: int
  k: int
  threads: int = 32
  accumulator: Literal["registers", "tensor_memory", "L0C"] = "registers"

  def __post_init__(self) -> None:
    for name in ("m", "n", "k"):
      at_least(name, getattr(self, name), 1)
    at_least("threads", self.threads, 1 if self.accumulator == "registers" else 0)

  @property
  def flops(self) -> int:
    """2·m·n·k; 4096 for 16 x 8 x 16."""
    return 2 * self.m * self.n * self.k

  @property
  def accumulator_registers_per_thread(self) -> int:
    """32-bit registers each thread holds of one fragment of C; 0 if it is elsewhere."""
    return ceil_div(self.m * self.n, self.threads) if self.accumulator == "registers" else 0


def _element_bytes(dtype: str) -> int:
  return _TFLOAT32_BYTES if dtype == "tfloat32" else dtypes.size_bytes(dtype)


def mma_shape(
  family: MmaFamily, *, dtype: str, m: int | None = None, n: int | None = None
) -> MmaShape:
  """The instruction of a family for operands of `dtype`; k fills 32 bytes.

      mma.sync            16 x 8, by a warp
      wgmma               64 x n, n in 8, 16, ... 256, by a warpgroup of 4 warps
      tcgen05             128 x n in 16s, or 64 x n in 8s, up to 256
      tcgen05.cta_group2  256 x n or 128 x n in 16s, up to 256, by two blocks
      cube                the Ascend fractal, 16 x 16

  With int8, n above 32 goes in 16s throughout.

  Args:
    family: One of these.
    dtype: Of A and B: bfloat16, float16, tfloat32, float8_e4m3fn, float8_e5m2 or
      int8; on the cube bfloat16, float16, float32 or int8.
    m: Rows; None: the family's largest.
    n: Columns; None: the family's largest.

  Raises:
    ValueError: the family has no such instruction; the message says what it has.

  Shapes: PTX ISA, and CUTLASS's mma_sm80.hpp, mma_sm90_gmma.hpp and
  mma_sm100_umma.hpp; mma.sync of compute capability 8.0 and later (8.9 for
  float8), wgmma 9.0, tcgen05 10.0. Fractal: the Ascend C documentation.
  """
  instance("family", family, str)
  for side, size in (("m", m), ("n", n)):
    if size is not None:
      at_least(side, size, 1)
  if family not in _RULES:
    raise ValueError(f"family={family!r}: expected one of {', '.join(_RULES)}")
  rule = _RULES[family]
  if dtype not in rule.dtypes:
    raise ValueError(f"dtype={dtype!r}: {family} multiplies {', '.join(rule.dtypes)}")
  rows = max(rule.column_unit_by_rows) if m is None else m
  if rows not in rule.column_unit_by_rows:
    sizes = " or ".join(map(str, rule.column_unit_by_rows))
    raise ValueError(f"m={m!r}: {family} has {sizes} rows")
  unit, (fewest, most) = rule.column_unit_by_rows[rows], rule.columns
  columns = most if n is None else n
  at_least("n", columns, 1)
  if dtype == "int8" and columns > 32:
    unit = 16
  if columns % unit or not fewest <= columns <= most:
    nearest = min(max(round_up(columns, unit), fewest, unit), most)
    raise ValueError(
      f"n={columns}: {family} with {rows} rows of {dtype} takes multiples of {unit} from"
      f" {max(fewest, unit)} to {most}; nearest is {nearest}"
    )
  return MmaShape(
    m=rows,
    n=columns,
    k=K_BYTES // _element_bytes(dtype),
    threads=rule.threads,
    accumulator=rule.accumulator,
  )


@dataclasses.dataclass(frozen=True)
class MmaCount:
  """Matrix instructions of one tile.

  Attributes:
    shape: The instruction.
    instructions: Of the tile.
    fragments: Blocks of C that one instruction adds to.
    k_steps: Instructions each fragment gets.
    fragments_per_group: Of the busiest warp (warpgroup, core).
    instructions_per_group: Of the busiest warp.
    accumulator_registers_per_thread: Of the fragments of a group; 0 where the
      accumulator is not in registers.
    tile_flops: Operations of the tile as asked for.
    padding_fraction: Share of the instructions' operations that is padding.
  """

  shape: MmaShape
  instructions: int
  fragments: int
  k_steps: int
  fragments_per_group: int
  instructions_per_group: int
  accumulator_registers_per_thread: int
  tile_flops: int
  padding_fraction: float


def mma_instructions(
  *,
  block_m: int,
  block_n: int,
  block_k: int,
  shape: MmaShape,
  groups: int = 1,
  pad: bool = False,
) -> MmaCount:
  """(block_m/m)·(block_n/n) fragments, each with block_k/k instructions.

  Example: a 128 x 128 x 64 tile takes 512 of 16 x 8 x 16: 128 fragments, with
  8 warps 16 a warp, and 64 instructions a warp over 4 steps of K. A kernel that
  keeps the accumulator in shared memory moves those 16 fragments to registers
  and back around each step.

  Args:
    block_m: Rows of the tile; at least 1, as all.
    block_n: Columns of the tile.
    block_k: Depth of the tile.
    shape: The instruction, for example `mma_shape("wgmma", dtype="bfloat16")`.
    groups: Warps, warpgroups or cores that share the fragments.
    pad: Count partial fragments and an uneven share as whole ones, as hardware
      that pads does (the cube, or a kernel that fills with zeros).

  Raises:
    ValueError: a size is below 1, or, without `pad`, the shape does not divide
      the tile, or the groups not the fragments.
  """
  instance("shape", shape, MmaShape)
  at_least("groups", groups, 1)
  for name, size, unit in (
    ("block_m", block_m, shape.m),
    ("block_n", block_n, shape.n),
    ("block_k", block_k, shape.k),
  ):
    at_least(name, size, 1)
    if size % unit and not pad:
      raise ValueError(
        f"{name}={size}: expected a multiple of the instruction's {unit}"
        f" ({shape.m}x{shape.n}x{shape.k}); nearest is {round_up(size, unit)}"
      )
  fragments = ceil_div(block_m, shape.m) * ceil_div(block_n, shape.n)
  if fragments % groups and not pad:
    nearest = max(count for count in range(1, groups + 1) if fragments % count == 0)
    raise ValueError(
      f"groups={groups}: does not divide the {fragments} fragments of a {block_m}x{block_n} tile;"
      f" nearest that does is {nearest}"
    )
  k_steps = ceil_div(block_k, shape.k)
  per_group = ceil_div(fragments, groups)
  flops = 2 * block_m * block_n * block_k
  return MmaCount(
    shape=shape,
    instructions=fragments * k_steps,
    fragments=fragments,
    k_steps=k_steps,
    fragments_per_group=per_group,
    instructions_per_group=per_group * k_steps,
    accumulator_registers_per_thread=per_group * shape.accumulator_registers_per_thread,
    tile_flops=flops,
    padding_fraction=1 - flops / (fragments * k_steps * shape.flops),
  )
