"""NumPy reference: float64 operations, exact rounding, ULP distances and error bounds.

The definition of what the kernels compute, and the yardstick for how far from
it they may be. Needs NumPy and ml_dtypes only.
"""

from reference.accumulation import accumulation_depth
from reference.activations import SILU_LIPSCHITZ, silu, silu_error_bound
from reference.bounded import Bounded
from reference.bounds import matmul_error_bound
from reference.compare import MatmulCheck, assert_matmul_close, check_matmul
from reference.formats import FloatFormat, float_format
from reference.integers import exact_integer_operands
from reference.judge import assert_within
from reference.ops import matmul, matmul_exact
from reference.products import bounded_matmul
from reference.rounding import round_to
from reference.spacing import NAN_DISTANCE, ulp, ulp_distance, ulp_error

__all__ = [
  "NAN_DISTANCE",
  "SILU_LIPSCHITZ",
  "Bounded",
  "FloatFormat",
  "MatmulCheck",
  "accumulation_depth",
  "assert_matmul_close",
  "assert_within",
  "bounded_matmul",
  "check_matmul",
  "exact_integer_operands",
  "float_format",
  "matmul",
  "matmul_error_bound",
  "matmul_exact",
  "round_to",
  "silu",
  "silu_error_bound",
  "ulp",
  "ulp_distance",
  "ulp_error",
]
