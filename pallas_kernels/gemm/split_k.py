"""K in parts: what runs a kernel once on all of them, and adds their sums in the order of K."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import MatmulConfig, MatmulProblem
from hw_profiles.matmul.split_k import workspace_bytes
from pallas_kernels import sharding
from pallas_kernels.dtypes import sum_dtype
from pallas_kernels.gemm.epilogue import Epilogue, complete
from pallas_kernels.gemm.operands import Operands

# A kernel of the family: operands and epilogue to [batch·split_k, M, N], the parts
# of each product side by side.
Kernel = Callable[[Operands, Epilogue], jax.Array]


@dataclasses.dataclass(frozen=True)
class SumEpilogue:
  """Stores the accumulator as it is.

  Attributes:
    out_dtype: The accumulator's dtype.
  """

  out_dtype: jnp.dtype
  activation: None = None

  @property
  def settled_dtype(self) -> jnp.dtype:
    """Nothing is rounded."""
    return self.out_dtype

  def settle(
    self, acc: jax.Array, per_row: tuple[jax.Array, ...], per_column: tuple[jax.Array, ...]
  ) -> jax.Array:
    """The accumulator."""
    del per_row, per_column
    return acc

  def finish(self, *settled: jax.Array, native_exp2: bool = False) -> jax.Array:
    """The accumulator."""
    del native_exp2
    (acc,) = settled
    return acc


def stored_dtype(epilogue: Epilogue, config: MatmulConfig, *, operands: Any) -> jnp.dtype:
  """What the kernel stores for operands of a dtype: the result, or the sums of a split K."""
  return epilogue.out_dtype if config.split_k == 1 else sum_dtype(operands)


def run(
  kernel: Kernel, operands: Operands, *, epilogue: Epilogue, config: MatmulConfig
) -> jax.Array:
  """epilogue(A·B, ...), [batch, M, N], by one launch of the kernel or, where K is split, two.

      P_s = A[:, K_s]·B[K_s, :]                    all in the kernel
      out = epilogue(((P_0 + P_1) + P_2) + ...)    one elementwise pass of XLA's

  The order of the merge is that of K, whatever finishes first: XLA does not
  reorder float additions.
  """
  if config.split_k == 1:
    return kernel(operands, epilogue)
  sums = kernel(
    operands._replace(per_row=(), per_column=()), SumEpilogue(sum_dtype(operands.a.dtype))
  )
  batched: Any = sums.reshape(-1, config.split_k, *sums.shape[1:])
  merged = functools.reduce(jnp.add, (batched[:, part] for part in range(config.split_k)))
  merged, *vectors = sharding.vary_together(merged, *operands.per_row, *operands.per_column)
  rows = len(operands.per_row)
  return complete(
    epilogue,
    (merged,),
    tuple(x[:, :, None] for x in vectors[:rows]),
    tuple(x[:, None, :] for x in vectors[rows:]),
    by_xla=True,
  )


def notes(problem: MatmulProblem, config: MatmulConfig) -> tuple[str, ...]:
  """What a split of K means for the call, where there is one."""
  if config.split_k == 1:
    return ()
  return (
    f"K is summed in {config.split_k} parts, kept in {workspace_bytes(problem, config)} B of"
    f" {sum_dtype(problem.dtype).name} and added in order by a second kernel",
  )
