"""The transpose, bit for bit."""

import ml_dtypes
import numpy as np
import pytest

from reference import assert_transpose_equal, check_transpose, transpose


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int8, np.bool_, np.float64])
@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 1), (0, 3), (3, 0), (1, 1)])
def test_a_copy_in_the_right_places_passes(shape, dtype):
  x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
  result = transpose(x)
  assert result.shape == (*shape[:-2], shape[-1], shape[-2])
  for index in np.ndindex(shape):
    assert result[(*index[:-2], index[-1], index[-2])] == x[index]
  assert assert_transpose_equal(result, x).elements == x.size


def test_wrong_places_and_wrong_bits_are_found():
  x = np.arange(12, dtype=np.float32).reshape(3, 4)
  wrong = transpose(x)
  wrong[2, 1], wrong[3, 0] = 77, 78
  check = check_transpose(wrong, x)
  assert (check.passed, check.failed_elements, check.worst_index) == (False, 2, (2, 1))
  with pytest.raises(AssertionError, match=r"2 of 12 elements .*first \[2, 1\]"):
    assert_transpose_equal(wrong, x)
  zero = transpose(x)
  zero[0, 0] = -0.0
  assert not check_transpose(zero, x).passed
  nan = np.array([[np.nan, -np.nan]], np.float32)
  assert check_transpose(transpose(nan), nan).passed
  assert not check_transpose(-transpose(nan), nan).passed


def test_wrong_arguments_are_named():
  x = np.zeros((2, 3), np.float32)
  with pytest.raises(ValueError, match=r"actual\.shape=\(2, 3\): expected \(3, 2\)"):
    check_transpose(x, x)
  with pytest.raises(ValueError, match=r"actual\.dtype=float64: expected float32"):
    check_transpose(np.zeros((3, 2)), x)
  with pytest.raises(ValueError, match=r"x\.shape=\(2,\)"):
    transpose(np.zeros(2))
