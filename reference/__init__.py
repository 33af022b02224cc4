"""NumPy reference: float64 operations, exact rounding, ULP distances and error bounds.

The definition of what the kernels compute, and the yardstick for how far from
it they may be. Needs NumPy and ml_dtypes only.
"""

from reference.accumulation import accumulation_depth
from reference.activations import (
  SILU_LIPSCHITZ,
  silu,
  silu_derivative,
  silu_derivative_error_bound,
  silu_error_bound,
)
from reference.attention.backward import AttentionGradients, flash_attention_gradients
from reference.attention.bound import attention_error_bound
from reference.attention.check import (
  AttentionCheck,
  assert_decode_attention_close,
  assert_flash_attention_close,
  check_decode_attention,
  check_flash_attention,
)
from reference.attention.decode import decode_attention, gather_pages
from reference.attention.forward import Attention, flash_attention, flash_attention_exact
from reference.attention.gradient_bound import (
  BoundedAttentionGradients,
  bounded_attention_gradients,
)
from reference.attention.problem import AttentionOptions
from reference.bounded import Bounded
from reference.bounded_arrays import bounded_sum
from reference.bounds import matmul_error_bound
from reference.compare import MatmulCheck, assert_matmul_close, check_matmul
from reference.formats import FloatFormat, float_format
from reference.fused_quantization import (
  assert_quantize_matmul_close,
  check_quantize_matmul,
  quantize_matmul,
)
from reference.gated import (
  assert_gated_matmul_close,
  check_gated_matmul,
  gated_matmul,
  gated_matmul_error_bound,
  gated_matmul_exact,
)
from reference.gradient_bounds import (
  bounded_gated_matmul_gradients,
  bounded_matmul_gradients,
  bounded_rms_norm_gradients,
  bounded_silu_derivative,
  bounded_swiglu_gradients,
)
from reference.gradients import (
  GatedMatmulGradients,
  MatmulGradients,
  RmsNormGradients,
  SwigluGradients,
  gated_matmul_gradients,
  matmul_gradients,
  rms_norm_gradients,
  swiglu_gradients,
)
from reference.integers import exact_integer_operands
from reference.judge import assert_within, check_within
from reference.ops import matmul, matmul_exact
from reference.order.block_scales import BlockCodes, block_codes
from reference.order.blocked_matmul import emulate_matmul
from reference.order.legality import Rewrite, activation_of_parts, dropped_rounding
from reference.order.merge_orders import MergeResults, merge_orders
from reference.order.online_softmax import (
  SoftmaxState,
  merge_states,
  online_softmax,
  rescale,
  softmax_state,
)
from reference.order.report import (
  SplitReport,
  emulate_inverse_rms,
  exact_sum,
  offset_in_ulp,
  signed_ulp_distance,
  sine_row,
  split_report,
)
from reference.order.sums import (
  emulate_sum,
  merge_sums,
  pairwise_sum,
  sequential_sum,
  split_lengths,
  split_sums,
)
from reference.products import bounded_matmul
from reference.quantized import (
  assert_quantized_matmul_close,
  check_quantized_matmul,
  quantized_matmul,
  quantized_matmul_error_bound,
  quantized_matmul_exact,
)
from reference.rounding import round_to
from reference.rowwise.inverse_rms import (
  bounded_inverse_rms,
  bounded_normalised,
  inverse_rms,
  mean_square,
)
from reference.rowwise.quantization import (
  QuantizeCheck,
  assert_quantize_rows_close,
  bounded_codes,
  bounded_row_scale,
  check_quantize_rows,
  dequantize,
  quantize,
  quantize_rows,
  row_scale,
)
from reference.rowwise.rms_norm import (
  assert_rms_norm_close,
  check_rms_norm,
  rms_norm,
  rms_norm_error_bound,
  rms_norm_exact,
)
from reference.rowwise.rms_norm_codes import (
  assert_rms_norm_quantize_close,
  check_rms_norm_quantize,
  rms_norm_quantize,
)
from reference.rowwise.swiglu import (
  assert_swiglu_close,
  assert_swiglu_quantize_close,
  bounded_swiglu,
  check_swiglu,
  check_swiglu_quantize,
  swiglu,
  swiglu_error_bound,
  swiglu_exact,
  swiglu_quantize,
)
from reference.rowwise.transpose import (
  CopyCheck,
  assert_transpose_equal,
  check_transpose,
  transpose,
)
from reference.spacing import NAN_DISTANCE, ulp, ulp_distance, ulp_error

__all__ = [
  "NAN_DISTANCE",
  "SILU_LIPSCHITZ",
  "Attention",
  "AttentionCheck",
  "AttentionGradients",
  "AttentionOptions",
  "BlockCodes",
  "Bounded",
  "BoundedAttentionGradients",
  "CopyCheck",
  "FloatFormat",
  "GatedMatmulGradients",
  "MatmulCheck",
  "MatmulGradients",
  "MergeResults",
  "QuantizeCheck",
  "Rewrite",
  "RmsNormGradients",
  "SoftmaxState",
  "SplitReport",
  "SwigluGradients",
  "accumulation_depth",
  "activation_of_parts",
  "assert_decode_attention_close",
  "assert_flash_attention_close",
  "assert_gated_matmul_close",
  "assert_matmul_close",
  "assert_quantize_matmul_close",
  "assert_quantize_rows_close",
  "assert_quantized_matmul_close",
  "assert_rms_norm_close",
  "assert_rms_norm_quantize_close",
  "assert_swiglu_close",
  "assert_swiglu_quantize_close",
  "assert_transpose_equal",
  "assert_within",
  "attention_error_bound",
  "block_codes",
  "bounded_attention_gradients",
  "bounded_codes",
  "bounded_gated_matmul_gradients",
  "bounded_inverse_rms",
  "bounded_matmul",
  "bounded_matmul_gradients",
  "bounded_normalised",
  "bounded_rms_norm_gradients",
  "bounded_row_scale",
  "bounded_silu_derivative",
  "bounded_sum",
  "bounded_swiglu",
  "bounded_swiglu_gradients",
  "check_decode_attention",
  "check_flash_attention",
  "check_gated_matmul",
  "check_matmul",
  "check_quantize_matmul",
  "check_quantize_rows",
  "check_quantized_matmul",
  "check_rms_norm",
  "check_rms_norm_quantize",
  "check_swiglu",
  "check_swiglu_quantize",
  "check_transpose",
  "check_within",
  "decode_attention",
  "dequantize",
  "dropped_rounding",
  "emulate_inverse_rms",
  "emulate_matmul",
  "emulate_sum",
  "exact_integer_operands",
  "exact_sum",
  "flash_attention",
  "flash_attention_exact",
  "flash_attention_gradients",
  "float_format",
  "gated_matmul",
  "gated_matmul_error_bound",
  "gated_matmul_exact",
  "gated_matmul_gradients",
  "gather_pages",
  "inverse_rms",
  "matmul",
  "matmul_error_bound",
  "matmul_exact",
  "matmul_gradients",
  "mean_square",
  "merge_orders",
  "merge_states",
  "merge_sums",
  "offset_in_ulp",
  "online_softmax",
  "pairwise_sum",
  "quantize",
  "quantize_matmul",
  "quantize_rows",
  "quantized_matmul",
  "quantized_matmul_error_bound",
  "quantized_matmul_exact",
  "rescale",
  "rms_norm",
  "rms_norm_error_bound",
  "rms_norm_exact",
  "rms_norm_gradients",
  "rms_norm_quantize",
  "round_to",
  "row_scale",
  "sequential_sum",
  "signed_ulp_distance",
  "silu",
  "silu_derivative",
  "silu_derivative_error_bound",
  "silu_error_bound",
  "sine_row",
  "softmax_state",
  "split_lengths",
  "split_report",
  "split_sums",
  "swiglu",
  "swiglu_error_bound",
  "swiglu_exact",
  "swiglu_gradients",
  "swiglu_quantize",
  "transpose",
  "ulp",
  "ulp_distance",
  "ulp_error",
]
