"""Loop nests: what they read and write, how they may be rearranged, what that changes.

    from hw_profiles import loops
    nest = loops.matmul_silu_nest(m=3, k=5, n=3)
    loops.check_legality(nest, loops.without_rounding(nest, "matmul")).witness

affine, nest            axes, accesses with affine indices, stages of one statement each
operations, rounding    what a statement computes, and the formats it rounds to
transform, moves        split, reorder, fuse, compute_at; moves that may be wrong
footprint, accesses, lifetimes    tiles read, how often, and how long buffers live
interpreter, symbolic   a nest run on numbers, or on expressions
legality                whether a changed nest computes the same, with a witness if not
programs                nests of the usual operators
"""

from hw_profiles.loops.accesses import (
  AccessPattern,
  TileAccess,
  access_patterns,
  intermediate_bytes,
  tile_accesses,
)
from hw_profiles.loops.affine import Access, Affine, parse_access
from hw_profiles.loops.dependences import Dependence, dependences
from hw_profiles.loops.footprint import Footprint, footprint
from hw_profiles.loops.interpreter import Execution, run
from hw_profiles.loops.legality import Legality, check_legality
from hw_profiles.loops.lifetimes import BufferLifetime, buffer_lifetimes
from hw_profiles.loops.moves import consume_partial, without_rounding
from hw_profiles.loops.nest import Axis, LoopNest, Stage, Statement, stage
from hw_profiles.loops.operations import (
  ABSOLUTE,
  COPY,
  MULTIPLY,
  QUANTIZE,
  SILU,
  THROUGH_E4M3,
  ScalarOperation,
)
from hw_profiles.loops.programs import (
  fused_matmul_silu_nest,
  matmul_nest,
  matmul_silu_nest,
  quantized_projection_nest,
  tile_stage,
  transpose_nest,
)
from hw_profiles.loops.rounding import round_number
from hw_profiles.loops.transform import compute_at, fuse, reorder, split
from hw_profiles.loops.witness import Witness, compare_on, find_witness

__all__ = [
  "ABSOLUTE",
  "COPY",
  "MULTIPLY",
  "QUANTIZE",
  "SILU",
  "THROUGH_E4M3",
  "Access",
  "AccessPattern",
  "Affine",
  "Axis",
  "BufferLifetime",
  "Dependence",
  "Execution",
  "Footprint",
  "Legality",
  "LoopNest",
  "ScalarOperation",
  "Stage",
  "Statement",
  "TileAccess",
  "Witness",
  "access_patterns",
  "buffer_lifetimes",
  "check_legality",
  "compare_on",
  "compute_at",
  "consume_partial",
  "dependences",
  "find_witness",
  "footprint",
  "fuse",
  "fused_matmul_silu_nest",
  "intermediate_bytes",
  "matmul_nest",
  "matmul_silu_nest",
  "parse_access",
  "quantized_projection_nest",
  "reorder",
  "round_number",
  "run",
  "split",
  "stage",
  "tile_accesses",
  "tile_stage",
  "transpose_nest",
  "without_rounding",
]
