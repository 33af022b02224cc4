"""What a tile of an attention keeps in the memories of a cube core and its vector cores."""

from hw_profiles.arguments import ceil_div, round_up
from hw_profiles.attention.passes import AttentionPass
from hw_profiles.profile import NpuProfile

# L0A, L0B, UB and what cube and vector cores exchange hold two of everything.
PING_PONG = 2
FLOAT32_BYTES = 4
# Columns of S that the cube computes at a time: the 128 x 128 tile of the vendor's kernels,
# whose K or V fills half of L0B at head size 128.
SUB_COLUMNS = 128


def padded_rows(rows: int, npu: NpuProfile) -> int:
  """Rows in whole fractals."""
  return round_up(rows, npu.fractal_rows)


def padded_dim(dim: int, one: AttentionPass, npu: NpuProfile) -> int:
  """A head size in whole fractals, which are square or deeper than they are high."""
  return round_up(dim, max(npu.fractal_rows, npu.c0_bytes // one.size_bytes))


def total_dim(operands: tuple[tuple[str, int], ...], one: AttentionPass, npu: NpuProfile) -> int:
  """Padded sizes of some operands, added up."""
  return sum(padded_dim(dim, one, npu) for _, dim in operands)


def sub_columns(one: AttentionPass, npu: NpuProfile) -> int:
  """Columns of S at a time: of a step at most 128."""
  return min(padded_rows(one.columns, npu), SUB_COLUMNS)


def widest(one: AttentionPass, npu: NpuProfile) -> int:
  """The widest operand, padded."""
  return max(padded_dim(dim, one, npu) for _, dim in (*one.kept, *one.streamed))


def l0c_tile_bytes(one: AttentionPass, npu: NpuProfile) -> tuple[int, int]:
  """Float32 tiles of scores, and of results, that L0C holds one of."""
  rows = padded_rows(one.rows, npu)
  scores = one.score_tiles * rows * sub_columns(one, npu) * FLOAT32_BYTES
  return scores, rows * total_dim(one.accumulators, one, npu) * FLOAT32_BYTES


def l0c_slots(one: AttentionPass, npu: NpuProfile) -> int:
  """Score and result tiles in L0C: two of each where they fit, else one."""
  scores, results = l0c_tile_bytes(one, npu)
  if one.name == "forward":
    return PING_PONG if PING_PONG * (scores + results) <= npu.l0c_bytes else 1
  return PING_PONG if PING_PONG * scores + results <= npu.l0c_bytes else 1


def l0c_bytes(one: AttentionPass, npu: NpuProfile) -> int:
  """What L0C holds: `l0c_slots` score tiles; forward as many results, backward the gradients."""
  scores, results = l0c_tile_bytes(one, npu)
  slots = l0c_slots(one, npu)
  return slots * scores + (slots if one.name == "forward" else 1) * results


def row_ub_bytes(one: AttentionPass) -> int:
  """UB bytes of one row of scores: float32 in and operands out, two of each, a temporary."""
  score = one.score_tiles * (FLOAT32_BYTES + one.size_bytes)
  return one.columns * (PING_PONG * score + FLOAT32_BYTES)


def running_ub_bytes(one: AttentionPass, npu: NpuProfile) -> int:
  """UB bytes of what a vector core keeps for a tile: its rows of O and of the row states."""
  rows = ceil_div(padded_rows(one.rows, npu), npu.vector_cores_per_cube_core)
  states = 3 * rows * FLOAT32_BYTES
  if one.name != "forward":
    return states
  return states + rows * total_dim(one.accumulators, one, npu) * FLOAT32_BYTES


def slab_rows(one: AttentionPass, npu: NpuProfile) -> int:
  """Rows of scores that a vector core holds at a time; 0 where not even one fits."""
  rows = ceil_div(padded_rows(one.rows, npu), npu.vector_cores_per_cube_core)
  free = npu.ub_bytes - running_ub_bytes(one, npu)
  row = row_ub_bytes(one)
  if one.name == "forward":
    # the step's P·V passes through the slab, too
    row = max(row, PING_PONG * total_dim(one.accumulators, one, npu) * FLOAT32_BYTES)
  return min(rows, max(free, 0) // row)


def step_operand_bytes(one: AttentionPass, npu: NpuProfile) -> int:
  """P, backward P and dS, as they go back to the cube in one step."""
  return one.score_tiles * padded_rows(one.rows, npu) * one.columns * one.size_bytes


def l1_bytes(one: AttentionPass, npu: NpuProfile) -> dict[str, tuple[int, int]]:
  """What L1 holds: operands of a tile, a ring of what it walks, probabilities.

  Where vector cores write L1 a whole step's probabilities lie there, else two
  of the cube's sub-tiles, which come from GM.
  """
  size = one.size_bytes
  stages = one.num_stages
  held = {
    name: (padded_rows(one.rows, npu) * padded_dim(dim, one, npu) * size, 1)
    for name, dim in one.kept
  }
  sub = sub_columns(one, npu)
  for name, dim in one.streamed:
    held[f"{name} ring"] = (stages * sub * padded_dim(dim, one, npu) * size, stages)
  probabilities = step_operand_bytes(one, npu)
  if not exchanges_directly(npu):
    probabilities = min(probabilities, PING_PONG * probabilities * sub // one.columns)
  held["P" if one.name == "forward" else "P and dS"] = (
    probabilities,
    1 if exchanges_directly(npu) else 2,
  )
  return held


def exchanges_directly(npu: NpuProfile) -> bool:
  """Whether cube and vector cores exchange tiles without a trip through GM."""
  return npu.has_l0c_to_ub and npu.ub_to_l1_bytes_per_cycle > 0


def workspace_bytes(one: AttentionPass, npu: NpuProfile) -> int:
  """GM that all cores exchange tiles through: two of each."""
  rows = padded_rows(one.rows, npu)
  scores = one.score_tiles * rows * one.columns * FLOAT32_BYTES
  _, results = l0c_tile_bytes(one, npu)
  exchanged = scores + step_operand_bytes(one, npu) + (results if one.name == "forward" else 0)
  return PING_PONG * npu.aic_count * exchanged


def l0b_side(one: AttentionPass, npu: NpuProfile) -> int:
  """Columns of the widest right operand: a sub-tile of scores, or a head size."""
  return max(sub_columns(one, npu), widest(one, npu))


def l0_depth(one: AttentionPass, npu: NpuProfile) -> int:
  """Depth of the slices in L0A and L0B: the deepest of which two fit in each, at most 128."""
  fractal = npu.c0_bytes // one.size_bytes
  deepest = min(
    npu.l0a_bytes // (PING_PONG * padded_rows(one.rows, npu) * one.size_bytes),
    npu.l0b_bytes // (PING_PONG * l0b_side(one, npu) * one.size_bytes),
    SUB_COLUMNS,
  )
  return deepest // fractal * fractal
