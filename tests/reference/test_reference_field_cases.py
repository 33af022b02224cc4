"""Cases from the field of matmul: sizes that no block divides, empty ones, TF32, special values."""

import ml_dtypes
import numpy as np
import pytest

from reference import check_matmul, matmul, matmul_gradients

BFLOAT16 = ml_dtypes.bfloat16
F32 = np.float32


@pytest.mark.parametrize("k", [1, 15, 16, 17, 23, 31, 33, 47, 65])
@pytest.mark.parametrize("dtype", [F32, BFLOAT16])
def test_a_contraction_that_no_block_divides(k, dtype):
  # BC-01: the sum of 0..K-1; integers of 8 bits are exact in bfloat16, up to K = 23
  a, b = np.ones((17, k), dtype), np.tile(np.arange(k)[:, None], (1, 19)).astype(dtype)
  result = matmul(a, b, out_dtype=F32)
  np.testing.assert_array_equal(result, np.full((17, 19), k * (k - 1) // 2))
  assert check_matmul(result, a, b).passed
  padded = np.pad(a, ((0, 0), (0, 7))), np.pad(b, ((0, 7), (0, 0)), constant_values=np.nan)
  assert np.isnan(matmul(*padded)).all()  # 0·NaN: padding has to be zeros on both sides
  if k > 1:
    assert not check_matmul(result - F32(k - 1), a, b).passed  # the last one dropped


@pytest.mark.parametrize(
  ("m", "k", "n"), [(1, 1, 1), (1, 1, 131), (17, 33, 1), (1, 4096, 1), (129, 1, 257)]
)
def test_degenerate_sizes(m, k, n):
  # BC-02
  a, b = (
    np.full((m, k), 3, BFLOAT16),
    ((np.arange(k * n) % 131) - 65).reshape(k, n).astype(BFLOAT16),
  )
  exact = a.astype(np.int64) @ b.astype(np.int64)
  np.testing.assert_array_equal(matmul(a, b), exact)


def test_empty_sizes_and_their_gradients():
  # BC-03
  a, b = np.zeros((5, 0), F32), np.zeros((0, 7), F32)
  np.testing.assert_array_equal(matmul(a, b, activation="silu"), np.zeros((5, 7)))
  assert matmul(np.zeros((0, 8)), np.zeros((8, 7))).shape == (0, 7)
  assert matmul(np.zeros((5, 8)), np.zeros((8, 0))).shape == (5, 0)
  gradients = matmul_gradients(a, b, np.ones((5, 7)), activation="silu")
  assert (gradients.a.shape, gradients.b.shape) == ((5, 0), (0, 7))


def test_float32_operands_are_not_cut_to_tf32():
  # BC-06
  a, b = np.full((16, 64), 1 + 2.0**-12, F32), np.ones((64, 16), F32)
  np.testing.assert_array_equal(matmul(a, b, out_dtype=F32), np.full((16, 16), 64.015625))
  assert check_matmul(np.full((16, 16), 64.015625, F32), a, b).passed
  assert not check_matmul(np.full((16, 16), 64.0, F32), a, b).passed
