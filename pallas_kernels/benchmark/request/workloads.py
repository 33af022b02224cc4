"""A stage of a request as the command line names it, so that a row can say how to get it again."""

from typing import Any

from hw_profiles import (
  AttentionProblem,
  DecodeProblem,
  MatmulProblem,
  RmsNormProblem,
  SwigluProblem,
)
from pallas_kernels.benchmark import ops
from pallas_kernels.benchmark.ops.decode_attention import DecodeOptions, DecodeShape
from pallas_kernels.benchmark.ops.flash_attention import FlashAttentionOptions, FlashAttentionShape
from pallas_kernels.benchmark.ops.gated_matmul import GatedMatmulOptions
from pallas_kernels.benchmark.ops.gemm import MatmulShape
from pallas_kernels.benchmark.ops.matmul import MatmulOptions
from pallas_kernels.benchmark.ops.rms_norm import RmsNormOptions
from pallas_kernels.benchmark.ops.rowwise import RowsShape
from pallas_kernels.benchmark.ops.swiglu import SwigluOptions
from pallas_kernels.benchmark.workload import Workload


def workload_of(problem: Any) -> Workload:
  """The op, sizes and options whose problem this is.

  Raises:
    TypeError: it is of none of the ops that a request is made of.
  """
  kernel, shape, options = _named(problem)
  return Workload(op=ops.get(kernel), shape=shape, dtype=problem.dtype, options=options, tiles=None)


def _named(problem: Any) -> tuple[str, Any, Any]:
  if isinstance(problem, MatmulProblem):
    shape = MatmulShape(m=problem.m, k=problem.k, n=problem.n)
    if problem.products == 2:
      return "gated_matmul", shape, GatedMatmulOptions(activation=problem.activation or "silu")
    return "matmul", shape, MatmulOptions()
  if isinstance(problem, AttentionProblem):
    whole = FlashAttentionShape(
      batch=problem.batch,
      seq_q=problem.seq_q,
      seq_kv=problem.seq_kv,
      heads=problem.heads,
      kv_heads=problem.kv_heads,
      head_dim=problem.head_dim,
    )
    return "flash_attention", whole, FlashAttentionOptions(causal=problem.causal)
  if isinstance(problem, DecodeProblem):
    cache = DecodeShape(
      batch=problem.batch,
      seq_kv=problem.seq_kv,
      heads=problem.heads,
      kv_heads=problem.kv_heads,
      head_dim=problem.head_dim,
    )
    return "decode_attention", cache, DecodeOptions()
  if isinstance(problem, RmsNormProblem):
    rows = RowsShape(rows=problem.rows, columns=problem.columns)
    return "rms_norm", rows, RmsNormOptions(residual=problem.residual)
  if isinstance(problem, SwigluProblem):
    return "swiglu", RowsShape(rows=problem.rows, columns=problem.columns), SwigluOptions()
  raise TypeError(f"no op of a request has a {type(problem).__name__}")
