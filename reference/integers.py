"""Integer operands on which float32 accumulation makes no rounding at all."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.formats import float_format


def exact_integer_operands(
  rng: np.random.Generator, m: int, k: int, n: int, dtype: npt.DTypeLike
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
  """Random integer A and B whose product is exact in `dtype`, in any order of summation.

  With p the significand bits of `dtype`, Σ_k |a_ik|·|b_kj| <= 2^p holds for
  every element, so every partial sum in every order is an integer of at most
  2^p <= 2^24: exact in float32, and the result exact in `dtype`. A kernel must
  match `matmul` bit for bit.

  Entries are drawn from ±1..±r with r = floor(sqrt(2^p / K)). Where K > 2^p,
  r is 1 and only 2^p entries of each row of A, at random positions, are not
  zero, so that each K block still counts (bfloat16 at K = 4096: 256 of them,
  4 in a block of 64). B has no zeros.

  Args:
    rng: Source of the numbers.
    m: Rows of A.
    k: Columns of A, rows of B.
    n: Columns of B.
    dtype: float32, float16, bfloat16 or float8_e4m3fn.

  Returns:
    A [m, k] and B [k, n] in `dtype`.

  Raises:
    ValueError: `dtype` is unknown or float64, whose integers pass float32's.
  """
  fmt = float_format(dtype)
  if fmt.precision > 24:
    raise ValueError(f"dtype={fmt.name}: expected float32 or a narrower float dtype")
  budget = 2**fmt.precision
  largest = max(1, math.isqrt(budget // max(k, 1)))

  def signed(shape: tuple[int, int]) -> npt.NDArray[np.int64]:
    return rng.integers(1, largest + 1, shape) * rng.choice(np.array([-1, 1]), shape)

  a, b = signed((m, k)), signed((k, n))
  if k > budget:
    order = np.argsort(rng.random((m, k)), axis=1)
    np.put_along_axis(a, order[:, budget:], 0, axis=1)
  return a.astype(np.float64).astype(fmt.dtype), b.astype(np.float64).astype(fmt.dtype)
