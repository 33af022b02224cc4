"""float32 sums, merges and products in a stated order, to the bit."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from reference import (
  check_matmul,
  emulate_matmul,
  emulate_sum,
  exact_integer_operands,
  matmul,
  matmul_exact,
  merge_orders,
  merge_sums,
  pairwise_sum,
  round_to,
  sequential_sum,
  signed_ulp_distance,
  sine_row,
  split_lengths,
  split_report,
  split_sums,
)
from reference.order import blocked_matmul
from reference.order.exact_rounding import sum_rounded_once

BFLOAT16 = ml_dtypes.bfloat16
F32 = np.float32
SMALL = F32(2.0**-24)


def loop(terms):
  total = F32(0)
  for term in terms:
    total = F32(total + F32(term))
  return total


def normal(*shape, seed=0, dtype=F32):
  return round_to(np.random.default_rng(seed).standard_normal(shape), dtype)


def test_addition_is_not_associative():
  terms = np.array([1, SMALL, SMALL], F32)
  assert float(sequential_sum(terms)) == 1.0
  assert float(sequential_sum(terms[::-1])) == 1 + 2.0**-23


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 100])
def test_sums_are_those_of_a_plain_loop(size):
  terms = normal(size)
  assert sequential_sum(terms).dtype == F32
  assert sequential_sum(terms) == loop(terms)
  if size == 7:
    t = terms
    tree = F32(F32(F32(t[0] + t[1]) + F32(t[2] + t[3])) + F32(F32(t[4] + t[5]) + t[6]))
    assert pairwise_sum(t) == tree
  stacked = normal(3, size, 2)
  np.testing.assert_array_equal(pairwise_sum(stacked, axis=1)[2, 1], pairwise_sum(stacked[2, :, 1]))


@pytest.mark.parametrize(
  ("size", "splits", "unit", "lengths"),
  [
    (4096, 8, 1, (512,) * 8),
    (10, 4, 1, (3, 3, 3, 1)),
    (10, 4, 4, (4, 4, 2, 0)),
    (100, 3, 32, (64, 36, 0)),
    (0, 2, 8, (0, 0)),
    (3, 5, 1, (1, 1, 1, 0, 0)),
  ],
)
def test_split_lengths(size, splits, unit, lengths):
  assert split_lengths(size, splits, unit=unit) == lengths


def test_every_split_covers_the_row_once():
  for size, splits, unit in itertools.product(range(0, 40, 3), range(1, 6), (1, 4, 7)):
    lengths = split_lengths(size, splits, unit=unit)
    assert (len(lengths), sum(lengths)) == (splits, size)
    assert sorted(lengths, reverse=True) == list(lengths)


def test_a_split_sum_is_the_sum_of_its_segments_in_the_merge_order():
  terms = normal(23)
  parts = [loop(terms[:8]), loop(terms[8:16]), loop(terms[16:])]
  np.testing.assert_array_equal(split_sums(terms, 3), parts)
  assert emulate_sum(terms, splits=3) == loop(parts)
  order = (2, 0, 1)
  assert emulate_sum(terms, splits=(8, 8, 7), merge=order) == loop([parts[i] for i in order])
  pairs = F32(F32(parts[0] + parts[1]) + parts[2])
  assert emulate_sum(terms, splits=3, merge="pairwise") == pairs
  assert emulate_sum(terms, inside="pairwise") == pairwise_sum(terms)


def test_a_split_that_depends_on_the_batch_moves_a_rows_bits():
  # F4-33: as many segments as fill 8 programs, against a number that is fixed
  row = sine_row(4096).astype(F32) ** 2
  alone = emulate_sum(row[None], splits=8)[0]
  in_a_batch = emulate_sum(np.stack([row] * 8), splits=1)[0]
  assert signed_ulp_distance(alone, in_a_batch) == 166
  fixed = [emulate_sum(np.stack([row] * rows), splits=8)[0] for rows in (1, 2, 8)]
  assert set(fixed) == {alone}


def test_merge_orders_are_those_of_the_full_enumeration():
  partials = split_sums(sine_row(4096).astype(F32) ** 2, 8)[:6]
  results = {}
  for order in itertools.permutations(range(6)):
    total = float(merge_sums(partials, order))
    results[total] = results.get(total, 0) + 1
  found = merge_orders(partials)
  assert found.orders == 720
  assert dict(zip(found.results, found.counts, strict=True)) == results
  assert list(found.results) == sorted(results)


def test_merge_orders_of_exact_sums_agree():
  found = merge_orders(np.arange(1, 13, dtype=F32))
  assert (found.results, found.spread_ulp) == ((78.0,), 0)
  assert found.orders == found.counts[0] == 479001600


def test_more_segments_are_not_always_nearer():
  # F4-25: width 8192 of the same row
  one, four = split_report(sine_row(8192), (1, 4))
  assert round(one.offset_ulp) == 32
  assert round(four.offset_ulp) == -110


def test_a_report_agrees_with_its_parts():
  row = normal(300, dtype=BFLOAT16)
  report = split_report(row, (1, 7), eps=1e-5)[1]
  squares = row.astype(F32) ** 2
  assert report.total == float(emulate_sum(squares, splits=7))
  exact = sum(Fraction(float(v)) ** 2 for v in row)
  assert report.exact == float(exact)
  assert report.offset_ulp == pytest.approx(
    (report.total - float(exact)) / 2.0**-15, abs=2.0**-52 * report.exact / 2.0**-15
  )
  assert report.largest_partial == float(split_sums(squares, 7).max())
  assert report.first_output == float(F32(row[0]) * F32(report.scale))


# Products.


def blocks_of(a, b, block_k, block_sum, start, stop):
  """One element by a plain loop: what `emulate_matmul` says, with exact rationals."""
  total = F32(0)
  for low in range(start, stop, block_k):
    high = min(low + block_k, stop)
    exact = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)][low:high]
    rounded = [F32(F32(x) * F32(y)) for x, y in zip(a, b, strict=True)][low:high]
    if block_sum == "exact":
      total = F32(total + nearest(sum(exact)))
    elif block_sum == "fused":
      total = nearest(Fraction(float(total)) + sum(exact))
    elif block_sum == "in_place":
      for product in rounded:
        total = F32(total + product)
    else:
      part = loop(rounded) if block_sum == "sequential" else pairwise_sum(np.array(rounded, F32))
      total = F32(total + part)
  return total


def nearest(value):
  """The float32 number nearest to a rational, ties to even."""
  near = F32(float(value))
  candidates = [near, np.nextafter(near, F32(np.inf)), np.nextafter(near, F32(-np.inf))]
  return min(candidates, key=lambda v: (abs(Fraction(float(v)) - value), int(v.view(np.int32)) & 1))


@pytest.mark.parametrize("block_sum", blocked_matmul.BLOCK_SUMS)
@pytest.mark.parametrize("dtype", [F32, BFLOAT16])
@pytest.mark.parametrize(
  ("k", "block_k", "splits"), [(37, 8, 1), (37, 8, 3), (16, 64, 1), (5, 1, 2)]
)
def test_blocked_products_are_those_of_a_plain_loop(block_sum, dtype, k, block_k, splits):
  a = normal(3, k, dtype=dtype, seed=1)
  b = normal(k, 2, dtype=dtype, seed=2)
  a[0] = round_to(a[0].astype(float) * 2.0 ** np.linspace(-40, 40, k), dtype)
  result = emulate_matmul(a, b, block_k=block_k, block_sum=block_sum, num_splits=splits)
  lengths = split_lengths(k, splits, unit=block_k)
  edges = list(itertools.pairwise([0, *itertools.accumulate(lengths)]))
  for i, j in np.ndindex(result.shape):
    parts = [blocks_of(a[i], b[:, j], block_k, block_sum, *edge) for edge in edges]
    assert result[i, j] == loop(parts), (i, j)


def test_the_merge_of_splits_is_in_the_stated_order():
  a, b = normal(4, 96, seed=3), normal(96, 5, seed=4)
  parts = [emulate_matmul(a[:, k : k + 32], b[k : k + 32], block_k=16) for k in range(0, 96, 32)]
  options = {"block_k": 16, "num_splits": 3}
  in_order = emulate_matmul(a, b, **options)
  np.testing.assert_array_equal(in_order, (parts[0] + parts[1]) + parts[2])
  other = emulate_matmul(a, b, merge=(2, 1, 0), **options)
  np.testing.assert_array_equal(other, (parts[2] + parts[1]) + parts[0])
  assert (other != in_order).any()
  np.testing.assert_array_equal(
    emulate_matmul(a, b, out_dtype=BFLOAT16, **options), in_order.astype(BFLOAT16)
  )


def test_rows_do_not_know_their_neighbours(monkeypatch):
  a, b = normal(2, 9, 70, seed=5), normal(70, 11, seed=6)
  options = {"block_k": 16, "block_sum": "fused", "num_splits": 2}
  whole = emulate_matmul(a, b, **options)
  np.testing.assert_array_equal(emulate_matmul(a[1, 3:4], b, **options), whole[1, 3:4])
  monkeypatch.setattr(blocked_matmul, "_TERMS", 1000)
  np.testing.assert_array_equal(emulate_matmul(a, b, **options), whole)


@pytest.mark.parametrize("block_sum", blocked_matmul.BLOCK_SUMS)
def test_every_order_is_inside_the_bound_and_exact_for_integers(block_sum):
  a, b = exact_integer_operands(np.random.default_rng(7), 5, 80, 6, BFLOAT16)
  exact = emulate_matmul(a, b, block_k=32, block_sum=block_sum, num_splits=2)
  np.testing.assert_array_equal(exact, matmul(a, b))
  a, b = normal(5, 80, dtype=BFLOAT16), normal(80, 6, dtype=BFLOAT16, seed=1)
  result = emulate_matmul(a, b, block_k=32, block_sum=block_sum)
  assert check_matmul(
    result, a, b, accumulation_chunk=None if block_sum == "in_place" else 32
  ).passed


def test_terms_that_cancel_tell_the_orders_apart():
  # 2^24 + 1 - 2^24: in place the 1 is lost on a tie, an exact block keeps it
  a = np.array([[2.0**24, 1, -(2.0**24)]], F32)
  b = np.ones((3, 1), F32)
  results = {
    s: float(emulate_matmul(a, b, block_k=4, block_sum=s)[0, 0]) for s in ("exact", "in_place")
  }
  assert results == {"exact": 1.0, "in_place": 0.0}


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_products(sizes):
  m, k, n = sizes
  result = emulate_matmul(np.ones((m, k), F32), np.ones((k, n), F32), block_k=8, num_splits=2)
  np.testing.assert_array_equal(result, np.zeros((m, n), F32))


def test_a_sum_is_rounded_once_whatever_its_range():
  rng = np.random.default_rng(0)
  terms = rng.standard_normal((300, 9)) * 2.0 ** rng.integers(-60, 60, (300, 9))
  terms = terms.astype(F32).astype(np.float64)
  tie = [1.0, 2.0**-24, 2.0**-100]  # a tie in float32 but for the last term, which float64 drops
  terms[0] = [*tie, 0, 0, 0, 0, 0, 0]
  terms[1] = [1.0, 2.0**-24, -(2.0**-100), 0, 0, 0, 0, 0, 0]
  terms[2] = [2.0**100, 1.0, -(2.0**100), 0, 0, 0, 0, 0, 0]
  result = sum_rounded_once(terms)
  for row, value in zip(terms, result, strict=True):
    assert value == nearest(sum(Fraction(float(t)) for t in row))
  np.testing.assert_array_equal(result[:3], np.array([1 + 2.0**-23, 1, 1], F32))
  assert np.isnan(sum_rounded_once(np.array([np.inf, -np.inf])))


def test_emulated_products_of_wide_operands_stay_near_the_exact_ones():
  a, b = normal(4, 50, seed=8), normal(50, 3, seed=9)
  exact = matmul_exact(a, b)
  fused = emulate_matmul(a, b, block_k=50, block_sum="fused")
  np.testing.assert_array_equal(fused, round_to(exact, F32))


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: emulate_sum(np.zeros(4)), r"terms\.dtype=float64"),
    (lambda: emulate_sum(np.zeros(4, F32), splits=(1, 2)), "lengths that add up to 4"),
    (lambda: emulate_sum(np.zeros(4, F32), splits=0), "splits=0: expected at least 1"),
    (lambda: emulate_sum(np.zeros(4, F32), splits=2, merge=(0, 0)), "each of 0..1 once"),
    (lambda: emulate_sum(np.zeros(4, F32), inside="tree"), "order='tree'"),
    (lambda: merge_orders(np.zeros(0, F32)), r"partials\.shape=\(0,\)"),
    (lambda: merge_orders(np.array([np.nan, 1], F32)), "NaN"),
    (
      lambda: emulate_matmul(np.zeros((1, 2), F32), np.zeros((2, 1), F32), block_k=0),
      "block_k=0: expected at least 1",
    ),
    (
      lambda: emulate_matmul(
        np.zeros((1, 2), F32), np.zeros((2, 1), F32), block_k=1, block_sum="kahan"
      ),
      "block_sum='kahan': expected one of exact, fused",
    ),
  ],
)
def test_wrong_arguments_are_named(call, message):
  with pytest.raises(ValueError, match=message):
    call()
