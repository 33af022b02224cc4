"""The derived bound: float32 accumulation never passes it, faulty kernels do."""

import ml_dtypes
import numpy as np
import pytest

from reference import accumulation_depth, matmul_error_bound, matmul_exact, round_to

BFLOAT16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
F32 = np.float32


# Float32 sums in a given order, of all float32 products at once: [M, K, N] -> [M, N].


def products(a, b):
  return a.astype(F32)[:, :, None] * b.astype(F32)[None, :, :]


def sequential(terms):
  if not terms.shape[1]:
    return np.zeros(terms[:, :0].sum(axis=1).shape, F32)
  return np.cumsum(terms, axis=1, dtype=F32)[:, -1]


def chunked(terms, chunk):
  parts = [sequential(terms[:, k : k + chunk]) for k in range(0, terms.shape[1], chunk)]
  return sequential(np.stack(parts, axis=1)) if parts else sequential(terms)


def pairwise(terms):
  while terms.shape[1] > 1:
    if terms.shape[1] % 2:
      terms = np.concatenate([terms, np.zeros_like(terms[:, :1])], axis=1)
    terms = terms[:, ::2] + terms[:, 1::2]
  return sequential(terms)


def shuffled(terms):
  return sequential(terms[:, np.random.default_rng(9).permutation(terms.shape[1])])


def largest_first(terms):
  return sequential(np.take_along_axis(terms, np.argsort(-np.abs(terms), axis=1), axis=1))


ORDERS = {
  "sequential": sequential,
  "reversed": lambda terms: sequential(terms[:, ::-1]),
  "shuffled": shuffled,
  "largest_first": largest_first,
  "pairwise": pairwise,
  "chunks_of_32": lambda terms: chunked(terms, 32),
}


def tensor_core(terms, products_per_step=4):
  """Aligns the addends to the largest, cuts off below 24 bits, adds, cuts off the sum."""
  total = np.zeros((terms.shape[0], 1, terms.shape[2]))
  for k in range(0, terms.shape[1], products_per_step):
    step = terms[:, k : k + products_per_step].astype(np.float64)
    addends = np.concatenate([total, step], axis=1)
    exponent = np.frexp(np.abs(addends).max(axis=1, keepdims=True))[1]
    aligned = np.ldexp(np.trunc(np.ldexp(addends, 24 - exponent)), exponent - 24)
    cut = round_to(aligned.sum(axis=1, keepdims=True), F32, mode="truncate")
    total = cut.astype(np.float64)
  return total[:, 0].astype(F32)


# Operands.


def normal(rng, m, k, n):
  return rng.standard_normal((m, k)), rng.standard_normal((k, n))


def positive(rng, m, k, n):
  return rng.uniform(0.5, 1, (m, k)), rng.uniform(0.5, 1, (k, n))


def cancelling(rng, m, k, n):
  """The second half of K undoes the first, up to a thousandth."""
  a, b = normal(rng, m, k, n)
  half = k // 2
  a[:, half : 2 * half] = -a[:, :half] * (1 + 1e-3 * rng.standard_normal((m, half)))
  b[half : 2 * half] = b[:half]
  return a, b


def wide_range(rng, m, k, n):
  a, b = normal(rng, m, k, n)
  return a * 2.0 ** rng.integers(-7, 7, a.shape), b * 2.0 ** rng.integers(-7, 7, b.shape)


DATA = {f.__name__: f for f in (normal, positive, cancelling, wide_range)}


def operands(data, dtype, k, m=6, n=7, seed=0):
  a, b = DATA[data](np.random.default_rng(seed), m, k, n)
  return round_to(a, dtype), round_to(b, dtype)


def excess(computed, a, b, *, out_dtype, **options):
  """Largest error in units of the bound: at most 1 if the bound holds."""
  epilogue = {name: options[name] for name in ("bias", "activation") if name in options}
  bound = matmul_error_bound(a, b, out_dtype=out_dtype, **options)
  error = np.abs(computed.astype(np.float64) - matmul_exact(a, b, **epilogue))
  assert np.isfinite(bound).all()
  return float((error / np.maximum(bound, 1e-300)).max(initial=0.0))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16, np.float32])
def test_bound_holds_in_every_order(dtype, data, order):
  for k in (0, 1, 2, 3, 31, 64, 500):
    a, b = operands(data, dtype, k, seed=k)
    total = ORDERS[order](products(a, b))
    assert excess(total, a, b, out_dtype=F32, flush_subnormals=False) <= 1
    assert excess(total.astype(dtype), a, b, out_dtype=dtype) <= 1


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32])
def test_bound_holds_for_long_sums(dtype):
  a, b = operands("positive", dtype, 4096, m=4, n=4)
  terms = products(a, b)
  for order in ("sequential", "pairwise", "chunks_of_32"):
    assert excess(ORDERS[order](terms), a, b, out_dtype=F32) <= 1
  assert excess(chunked(terms, 64), a, b, out_dtype=F32, accumulation_chunk=64) <= 1
  assert excess(a.astype(F32) @ b.astype(F32), a, b, out_dtype=F32) <= 1


def test_bound_of_chunks_is_sharper_and_another_order_can_pass_it():
  # one term and then K - 1 that are half its last place, which a sequential sum drops
  a = np.full((1, 1024), 2.0**-24, F32)
  a[0, 0] = 1.0
  b = np.ones((1024, 1), F32)
  terms = products(a, b)
  options = {"out_dtype": F32, "accumulation_chunk": 32}
  assert excess(chunked(terms[:, ::-1], 32), a, b, **options) <= 1
  assert excess(sequential(terms), a, b, **options) > 10
  assert 0.9 < excess(sequential(terms), a, b, out_dtype=F32) <= 1  # and the general one is sharp


def silu_float32(t):
  return (t / (F32(1) + np.exp(-t))).astype(F32)


@pytest.mark.parametrize("intermediate", [None, np.float32, np.float16])
@pytest.mark.parametrize("out", [BFLOAT16, np.float16, np.float32])
@pytest.mark.parametrize("data", DATA)
def test_bound_holds_through_bias_and_silu(data, out, intermediate):
  a, b = operands(data, BFLOAT16, 96, m=16, n=16)
  bias = round_to(np.random.default_rng(1).standard_normal(16), BFLOAT16)
  total = sequential(products(a, b)) + bias.astype(F32)
  stored = total.astype(out if intermediate is None else intermediate).astype(F32)
  with np.errstate(over="ignore"):
    result = silu_float32(stored).astype(out)
  options = {"bias": bias, "activation": "silu", "intermediate_dtype": intermediate}
  assert excess(result, a, b, out_dtype=out, **options) <= 1


def test_bound_survives_a_sum_on_a_rounding_boundary():
  # exact: 257 - 2^-20, rounds to 256; a float32 sum gives 257 + 2^-15 or so and rounds to 258
  a = np.array([[257.0, -(2.0**-20)]], F32)
  b = np.ones((2, 1), F32)
  tipped = np.array([[258.0]]).astype(BFLOAT16)
  assert float(round_to(matmul_exact(a, b), BFLOAT16)[0, 0]) == 256.0
  assert excess(tipped, a, b, out_dtype=BFLOAT16) <= 1
  assert excess(np.array([[260.0]]).astype(BFLOAT16), a, b, out_dtype=BFLOAT16) > 1


def tf32(x):
  """float32 with 10 stored significand bits, rounded to nearest even."""
  _, exponent = np.frexp(x.astype(np.float64))
  return np.ldexp(np.rint(np.ldexp(x.astype(np.float64), 11 - exponent)), exponent - 11).astype(F32)


def bfloat16_sum(terms):
  total = np.zeros_like(terms[:, 0])
  for k in range(terms.shape[1]):
    total = (total + terms[:, k]).astype(BFLOAT16).astype(F32)
  return total


@pytest.mark.parametrize("accumulate", ["ieee", "tensor_core"])
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16, np.float32])
@pytest.mark.parametrize("k", [64, 1024])
def test_a_dropped_k_block_violates_the_bound(k, dtype, accumulate):
  a, b = operands("normal", dtype, k, m=16, n=16)
  block = slice(k - 32, k)
  wrong = a.astype(np.float64) @ b.astype(np.float64)
  wrong -= a[:, block].astype(np.float64) @ b[block].astype(np.float64)
  options = {"out_dtype": dtype, "accumulate": accumulate}
  assert excess(round_to(wrong, dtype), a, b, **options) > 10


@pytest.mark.parametrize("accumulate", ["ieee", "tensor_core"])
def test_accumulation_in_bfloat16_violates_the_bound(accumulate):
  a, b = operands("positive", BFLOAT16, 256, m=8, n=8)
  wrong = bfloat16_sum(products(a, b)).astype(BFLOAT16)
  assert excess(wrong, a, b, out_dtype=BFLOAT16, accumulate=accumulate) > 10


@pytest.mark.parametrize("k", [8, 128])
def test_tf32_operands_violate_the_bound_of_float32(k):
  a, b = operands("normal", np.float32, k, m=16, n=16)
  wrong = sequential(products(tf32(a), tf32(b)))
  assert excess(sequential(products(a, b)), a, b, out_dtype=F32) <= 1
  assert excess(wrong, a, b, out_dtype=F32) > 3


def test_a_forgotten_bias_or_a_second_activation_violates_the_bound():
  a, b = operands("normal", BFLOAT16, 64, m=8, n=8)
  total = sequential(products(a, b))
  bias = np.full(8, 0.5, F32)
  assert excess(total, a, b, out_dtype=F32, bias=bias) > 10
  twice = silu_float32(silu_float32(total))
  options = {"activation": "silu", "intermediate_dtype": np.float32}
  assert excess(twice, a, b, out_dtype=F32, **options) > 10


def absorbed_terms(k):
  """1 and k - 1 terms just below its last place: each addition that cuts off loses a whole one."""
  a = np.full((1, k), 2.0**-23 * (1 - 2.0**-6))
  a[0, 0] = 1.0
  return round_to(a, BFLOAT16), np.ones((k, 1), BFLOAT16)


def test_truncating_accumulation_passes_the_ieee_bound_but_not_the_tensor_core_one():
  a, b = absorbed_terms(512)
  cut = tensor_core(products(a, b), products_per_step=1)
  assert float(cut[0, 0]) == 1.0
  assert excess(cut, a, b, out_dtype=F32) > 1.5
  assert excess(cut, a, b, out_dtype=F32, accumulate="tensor_core") <= 1
  assert excess(sequential(products(a, b)), a, b, out_dtype=F32) <= 1


@pytest.mark.parametrize("products_per_step", [4, 8, 16])
@pytest.mark.parametrize("data", [*DATA, "absorbed"])
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16])
def test_tensor_core_bound_holds_for_aligned_and_cut_off_blocks(dtype, data, products_per_step):
  for k in (1, 4, 5, 64, 300):
    a, b = absorbed_terms(k) if data == "absorbed" else operands(data, dtype, k)
    total = tensor_core(products(a, b), products_per_step)
    assert excess(total, a, b, out_dtype=F32, accumulate="tensor_core") <= 1


def flush(x):
  return np.where(np.abs(x) < 2.0**-126, np.zeros_like(x), x)


def test_underflowing_products_are_covered():
  rng = np.random.default_rng(0)
  a, b = (x * 2.0**-66 for x in normal(rng, 8, 64, 8))
  a, b = round_to(a, BFLOAT16), round_to(b, BFLOAT16)  # products around 2^-132: subnormal
  gradual = sequential(products(a, b))
  assert excess(gradual, a, b, out_dtype=F32, flush_subnormals=False) <= 1
  flushed = np.zeros((8, 8), F32)
  assert excess(flushed, a, b, out_dtype=F32) <= 1
  assert excess(flushed, a, b, out_dtype=F32, flush_subnormals=False) > 1


@pytest.mark.parametrize("swap", [False, True])
def test_subnormal_operands_read_as_zero_are_covered(swap):
  a = np.array([[2.0**-127, 2.0**-40]], F32)
  b = np.array([[2.0**100, 2.0**-80], [2.0**-40, 1.0]], F32)
  if swap:
    a, b = b.T, a.T
  flushed, kept = sequential(products(flush(a), flush(b))), sequential(products(a, b))
  assert (flushed != kept).any()  # 2^-27 is lost
  assert excess(flushed, a, b, out_dtype=F32) <= 1
  assert excess(flushed, a, b, out_dtype=F32, flush_subnormals=False) > 1
  assert excess(kept, a, b, out_dtype=F32, flush_subnormals=False) <= 1


@pytest.mark.parametrize("out_dtype", [BFLOAT16, F32])
@pytest.mark.parametrize("stage", ["product", "sum", "bias", "result"])
def test_a_flush_at_any_one_stage_is_covered(stage, out_dtype):
  tiny = {"product": 2.0**-64, "sum": 2.0**-63, "bias": 2.0**-63, "result": 2.0**-63}[stage]
  a = np.array([[tiny, -tiny * (1 - 2.0**-7)]] if stage == "sum" else [[tiny]]).astype(BFLOAT16)
  b = np.full((a.shape[1], 1), tiny).astype(BFLOAT16)
  bias = np.full(1, -(2.0**-126) * (1 - 2.0**-7), F32) if stage in ("bias", "result") else None
  exact = matmul_exact(a, b, bias=bias)
  assert 0 < exact[0, 0] < 2.0**-126
  options = {} if bias is None else {"bias": bias}
  assert excess(np.zeros((1, 1), out_dtype), a, b, out_dtype=out_dtype, **options) <= 1


def test_a_subnormal_bias_alone_may_be_flushed():
  a, b, bias = np.zeros((1, 0), F32), np.zeros((0, 1), F32), np.full(1, 1.5 * 2.0**-127, F32)
  zero = np.zeros((1, 1), F32)
  assert excess(zero, a, b, out_dtype=F32, bias=bias) <= 1
  assert excess(zero, a, b, out_dtype=F32, bias=bias, flush_subnormals=False) > 1


def test_infinities_and_nan_of_exact_arithmetic_leave_no_room():
  a = np.array([[np.inf, 1.0], [np.nan, 1.0], [np.inf, -np.inf], [1.0, 1.0]], F32)
  bound = matmul_error_bound(a, np.ones((2, 1), F32), out_dtype=F32)
  np.testing.assert_array_equal(bound[:3, 0], 0)
  assert bound[3, 0] > 0


def test_the_rounding_of_the_bias_addition_is_covered():
  one, bias = np.ones((1, 1), BFLOAT16), np.full(1, 1.5 * 2.0**-24, F32)
  total = one.astype(F32) + bias  # 1 + 2^-23: a quarter of a last place too much
  assert 0.4 < excess(total, one, one, out_dtype=F32, bias=bias) <= 1
  assert excess(total + F32(2.0**-23), one, one, out_dtype=F32, bias=bias) > 2


def test_flushing_does_not_loosen_the_bound_of_float16_results():
  # 2^-24 is float16's smallest value and a normal float32
  a, b = np.full((1, 4), 2.0**-12, np.float16), np.full((4, 1), 2.0**-12, np.float16)
  bound = matmul_error_bound(a, b, out_dtype=np.float16)
  assert bound[0, 0] == pytest.approx(2.0**-25, rel=2.0**-19)
  # half a subnormal spacing; 3 additions of float32 that end at 2^-22 are 24 of its 2^-24 more


@pytest.mark.parametrize(
  ("out_dtype", "ulps"), [(BFLOAT16, 2.0**-7), (np.float16, 2.0**-10), (E4M3, 2.0**-3)]
)
def test_one_exact_product_is_bounded_by_its_rounding_alone(out_dtype, ulps):
  bound = matmul_error_bound(
    np.full((1, 1), 1.25, BFLOAT16), np.full((1, 1), 1.25, BFLOAT16), out_dtype=out_dtype
  )
  assert bound[0, 0] == pytest.approx(ulps / 2, rel=2.0**-50)


def test_saturation_counts_as_error_of_an_e4m3_result():
  a, b = np.full((1, 1), 64.0, BFLOAT16), np.full((1, 1), 16.0, BFLOAT16)
  assert matmul_error_bound(a, b, out_dtype=E4M3)[0, 0] == pytest.approx(1024 - 448, rel=2.0**-50)


def test_bound_is_infinite_where_the_result_may_overflow():
  # float16 overflows from 65520 on; the error of a sum may carry the float32 below it there
  a = np.array([[65504.0, 0.0], [np.nextafter(F32(65520), F32(0)), 0.0], [1e38, 0.0]], F32)
  b = np.array([[1.0, 10.0], [1.0, 1.0]], F32)
  np.testing.assert_array_equal(
    np.isinf(matmul_error_bound(a, b, out_dtype=np.float16)),
    [[False, True], [True, True], [True, True]],
  )
  np.testing.assert_array_equal(
    np.isinf(matmul_error_bound(a, b, out_dtype=F32)),
    [[False, False], [False, False], [False, True]],
  )


def test_bound_broadcasts_and_can_be_sliced():
  rng = np.random.default_rng(0)
  a = round_to(rng.standard_normal((3, 10, 20)), BFLOAT16)
  b = round_to(rng.standard_normal((20, 12)), BFLOAT16)
  bias = rng.standard_normal(12).astype(F32)
  options = {"out_dtype": BFLOAT16, "activation": "silu"}
  whole = matmul_error_bound(a, b, bias=bias, **options)
  assert whole.shape == (3, 10, 12)
  part = matmul_error_bound(a[1, 2:5], b[:, 4:9], bias=bias[4:9], **options)
  # BLAS may add the 20 terms of a slice in another order, 20 float64 roundings on each side.
  # The bound follows |A|·|B| and |A·B| with slopes under 2^-8, bfloat16's unit, and its own
  # evaluation adds a few roundings of its value.
  magnitude = np.abs(a[1, 2:5].astype(np.float64)) @ np.abs(b[:, 4:9].astype(np.float64))
  reordered = 2 * 20 * 2.0**-53 * 2.0**-8 * (magnitude + np.abs(bias[4:9]))
  expected = whole[1, 2:5, 4:9]
  assert np.all(np.abs(part - expected) <= reordered + 8 * 2.0**-53 * expected)


@pytest.mark.parametrize(
  ("k", "chunk", "depth"),
  [
    (0, None, 0),
    (1, None, 0),
    (4096, None, 4095),
    (4096, 64, 63 + 63),
    (4097, 64, 63 + 64),
    (100, 100, 99),
    (100, 1000, 99),
    (100, 1, 99),
    (0, 8, 0),
  ],
)
def test_accumulation_depth_counts_additions(k, chunk, depth):
  assert accumulation_depth(k, chunk) == depth


def test_chunks_never_deepen_a_sum():
  for k in range(1, 60):
    depths = [accumulation_depth(k, chunk) for chunk in range(1, 70)]
    assert max(depths) == accumulation_depth(k) == k - 1


def test_tensor_core_depth_adds_one_cut_off_for_four_products():
  assert accumulation_depth(64, accumulate="tensor_core") == 64 + 16
  assert accumulation_depth(65, accumulate="tensor_core") == 65 + 17
  assert accumulation_depth(64, 16, accumulate="tensor_core") == 16 + 4 + 3
  assert accumulation_depth(0, accumulate="tensor_core") == 0


@pytest.mark.parametrize(
  ("dtype", "options", "message"),
  [
    (np.float64, {}, r"a\.dtype=float64: .*float32 or a narrower"),
    (np.int8, {}, r"a\.dtype=.*int8.*expected one of"),
    (BFLOAT16, {"accumulation_chunk": 0}, "accumulation_chunk=0: expected at least 1"),
    (BFLOAT16, {"accumulate": "fp16"}, "accumulate='fp16': expected 'ieee' or 'tensor_core'"),
    (E4M3, {"accumulate": "tensor_core"}, "8-bit product sum; expected a 16-bit dtype"),
    (BFLOAT16, {"activation": "gelu"}, "activation='gelu'"),
    (BFLOAT16, {"bias": np.zeros(2)}, r"bias\.dtype=float64"),
    (BFLOAT16, {"intermediate_dtype": np.int32}, "intermediate_dtype="),
  ],
)
def test_wrong_arguments_are_named(dtype, options, message):
  a = np.ones((2, 2), dtype)
  with pytest.raises(ValueError, match=message):
    matmul_error_bound(a, a, out_dtype=BFLOAT16, **options)
