"""The Hopper kernel of codes and scales, interpreted or on a GPU; what it refuses."""

import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rowwise_cases
from rowwise_cases import (
  H200,
  H200_SHARED_BYTES,
  HOPPER,
  HOPPER_MARKS,
  arrays,
  normal,
  runs_hopper,
)

import reference
from pallas_kernels import RowConfig, compat, device, explain, quantize_rows, swiglu_quantize
from pallas_kernels.rowwise import arithmetic, hopper_row_blocks, hopper_rows, row_stream

CODES = ["float8_e4m3fn", "int8"]
pytestmark = HOPPER_MARKS


def assert_same_codes(found, expected) -> None:
  """Bit for bit, any NaN for any other."""
  (codes, scale), (portable, portable_scale) = arrays(*found), arrays(*expected)
  assert (codes.dtype, scale.dtype) == (portable.dtype, portable_scale.dtype)
  np.testing.assert_array_equal(scale, portable_scale)
  same = codes.view(np.uint8) == portable.view(np.uint8)
  assert np.all(same | ((codes != codes) & (portable != portable)))


def assert_gated(found, gate: jax.Array, up: jax.Array, code: str) -> None:
  """The codes of silu(gate)·up, by the reference.

  Not by the portable kernel's bits: compiled, two kernels' silu may differ by a rounding, as one
  fuses a product with the sum after it.
  """
  reference.assert_swiglu_quantize_close(*arrays(*found, gate, up), dtype=code)


def special_rows(rng, rows: int, columns: int, dtype: str = "bfloat16") -> jax.Array:
  """Ordinary rows, and ones with what the codec has a rule for."""
  x = np.array(normal(rng, rows, columns, dtype="float32"))
  x[0] *= 2.0**-15
  x[1, 5] = np.inf
  x[2, [0, columns - 1]] = np.nan, -np.inf
  x[3] = 0.0
  x[4] = np.nan
  x[5] = 0.0
  x[5, 7] = -np.inf
  x[6, columns - 1] = 1000.0
  return jnp.asarray(x, dtype)


@runs_hopper
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
  ("rows", "columns"),
  [
    (11, 1024),  # more rows than blocks
    (1, 2048),  # one row: most groups have none
    (45, 512),  # more turns than stages
    (9, 7168),  # warpgroups share a row
    (3, 9216),  # three of them
    (3, 16640),  # too wide for a block of its own
  ],
)
def test_codes_of_gated_rows_are_inside_the_bounds(rows, columns, code, cores, races, rng):
  gate, up = normal(rng, rows, columns), normal(rng, rows, columns)
  found = rowwise_cases.swiglu_quantize(gate, up, dtype=code, implementation=HOPPER)
  assert not races()
  assert_gated(found, gate, up, code)


@runs_hopper
@pytest.mark.parametrize(("columns", "code"), [(64, "int8"), (72, "float8_e4m3fn"), (5000, "int8")])
def test_rows_of_any_multiple_of_eight(columns, code, cores, rng):
  # the last columns are copied twice
  gate, up = normal(rng, 5, columns, dtype="float16"), normal(rng, 5, columns, dtype="float16")
  found = rowwise_cases.swiglu_quantize(gate, up, dtype=code, implementation=HOPPER)
  assert_gated(found, gate, up, code)


@runs_hopper
@pytest.mark.parametrize(
  ("columns", "rows"),
  [
    (72, 19),  # every shift, twice
    (520, 5),  # of two pieces both are partly outside
    (5000, 17),  # the last of a row's columns are the last of its memory
    (6032, 9),  # without a shift one warpgroup would have room
    (12360, 2),  # the members' first and last pieces
    (24584, 2),  # all warpgroups share it
    (32760, 2),  # a thread has no room for a shift
  ],
)
def test_rows_that_begin_anywhere_in_a_line(columns, rows, cores, rng):
  # what is copied twice is the same both times, and a race all the same: none is looked for here.
  # The extremes are in the first and the last column: a maximum that took a neighbour's or lost
  # its own would show in the scale
  x = np.array(normal(rng, rows, columns, dtype="float32"))
  x[::2, 0], x[1::2, -1] = 50.0, -60.0
  x[rows // 2] /= 64
  x[-1, [0, -1]] = np.nan, np.inf
  x = jnp.asarray(x, "bfloat16")
  found = rowwise_cases.quantize_rows(x, implementation=HOPPER)
  assert_same_codes(found, reference.quantize_rows(np.asarray(x)))


@runs_hopper
@pytest.mark.parametrize("columns", [64, 72, 968, 4104, 5000, 11000, 12352, 32760, 32768])
def test_a_shifted_row_is_inside_its_memory(columns):
  share = row_stream.share_of(columns, shifted=True)
  shifts = np.asarray([share.shift(jnp.int32(row)) for row in range(40)])
  # as an address says, in numbers of 128 bytes of results and of 256 of operands
  expected = np.arange(40) * columns % 128
  fits = columns <= 32768 - 120
  np.testing.assert_array_equal(shifts, expected if fits else 0)
  assert shifts.max() <= share.most_shift
  assert share.most_shift + columns <= share.stored
  assert np.all(shifts % share.vector == 0)


@runs_hopper
@pytest.mark.parametrize(
  ("columns", "code"),
  [(1024, "float8_e4m3fn"), (1024, "int8"), (6200, "float8_e4m3fn"), (13312, "int8")],
)
def test_codes_of_rows_are_the_references(columns, code, cores, rng):
  x = special_rows(rng, 9, columns)
  found = rowwise_cases.quantize_rows(x, dtype=code, implementation=HOPPER)
  expected = reference.quantize_rows(np.asarray(x), dtype=code)
  assert_same_codes(found, expected)


@runs_hopper
@pytest.mark.parametrize("code", CODES)
def test_infinities_and_nans_of_gated_rows(code, cores, rng):
  gate, up = special_rows(rng, 9, 1024), normal(rng, 9, 1024)
  for operands in ((gate, up), (up, gate)):
    found = rowwise_cases.swiglu_quantize(*operands, dtype=code, implementation=HOPPER)
    assert_gated(found, *operands, code)


@runs_hopper
@pytest.mark.parametrize("exponent", [-110, -60, 60, 110])
def test_rows_at_the_ends_of_the_range(exponent, cores, rng):
  x = jnp.asarray(rng.standard_normal((4, 512)) * 2.0**exponent, jnp.bfloat16)
  found = rowwise_cases.quantize_rows(x, implementation=HOPPER)
  assert_same_codes(found, reference.quantize_rows(np.asarray(x)))


@runs_hopper
def test_a_batch_is_more_rows(cores, rng):
  x = normal(rng, 3, 5, 256)
  found = jax.vmap(lambda x: quantize_rows(x, implementation=HOPPER))(x)
  assert_same_codes(found, reference.quantize_rows(np.asarray(x)))


def _nearest(value: fractions.Fraction) -> fractions.Fraction:
  """The float32 number of a range without ends that is nearest, ties to even."""
  if value == 0:
    return value
  exponent = abs(value).numerator.bit_length() - abs(value).denominator.bit_length()
  # one more bit than needed where the quotient of the leading bits is below 1
  exponent -= abs(value) < fractions.Fraction(2) ** exponent
  unit = fractions.Fraction(2) ** (exponent - 23)
  return round(value / unit) * unit


def _computed(ptx: str, **registers: fractions.Fraction) -> fractions.Fraction:
  """$0, each instruction rounded once from its exact value."""
  for line in ptx.strip().splitlines():
    name, *operands = line.strip().rstrip(";").replace(",", "").split()
    to, *values = operands[0], *(registers[one] for one in operands[1:])
    if name == "neg.f32":
      registers[to] = -values[0]
    elif name == "mul.rn.f32":
      registers[to] = _nearest(values[0] * values[1])
    else:
      assert name == "fma.rn.f32"
      registers[to] = _nearest(values[0] * values[1] + values[2])
  return registers["$0"]


def _quotients_near_middles(bits: int, most: int):
  """All (x, y) of 24 bits with x / y near the middle of a number of few bits and its neighbour.

  With x and y integers of 24 bits and a middle b·2^-d, b odd, x·2^e / y is |n|·2^-d / y from it
  where x·2^(d + e) - b·y = n: of each b and n one y at most.

  Args:
    bits: Of the number.
    most: The largest |n|; 8 is a distance of 2^-46 of the quotient or more.
  """
  for number in range(1 << (bits - 1), 1 << bits):
    for side in (1, -1):
      # beside a power of two the lower neighbour is half as far
      d = 25 if number == 1 << (bits - 1) and side < 0 else 24
      b = (number << (d + 1 - bits)) + side
      for n in (*range(-most, 0), *range(1, most + 1)):
        for e in (0, 1):
          power = 1 << (d + e)
          y = -n * pow(b, -1, power) % power
          x = (n + b * y) // power
          if y >> 23 == 1 and x >> 23 == 1:
            yield fractions.Fraction(x), fractions.Fraction(y)


def test_a_quotient_is_the_nearest_wherever_a_code_could_tell():
  """Beside the middles of `refined_quotient`: codes and halves between them have at most 8 bits."""
  ptx = arithmetic.refined_quotient("x", "y", "r")
  count = 0
  for x, y in _quotients_near_middles(8, 16):
    assert _computed(ptx, x=x, y=y, r=_nearest(1 / y)) == _nearest(x / y), (x, y)
    count += 1
  assert count > 2000


def test_a_quotient_is_one_of_the_two_beside_it(rng):
  ptx = arithmetic.refined_quotient("x", "y", "r")
  for x, y in rng.integers(1 << 23, 1 << 24, (2000, 2)):
    z = fractions.Fraction(int(x), int(y))
    found = _computed(ptx, x=fractions.Fraction(int(x)), y=fractions.Fraction(int(y)),
                      r=_nearest(fractions.Fraction(1, int(y))))  # fmt: skip
    assert abs(found - z) < fractions.Fraction(2) ** (-23 if x >= y else -24)


@pytest.mark.parametrize(
  ("columns", "members", "vector"),
  [(64, 1, 4), (4096, 1, 8), (5000, 1, 8), (11008, 2, 4), (12288, 2, 8), (24576, 4, 8)],
)
def test_a_row_is_shared_by_few_warpgroups(columns, members, vector):
  share = row_stream.share_of(columns, shifted=True)
  assert (share.members, share.vector) == (members, vector)
  assert columns % vector == 0
  assert share.stored // (128 * members) <= 48
  assert share.stored < 1.05 * columns or columns < 1024


@pytest.mark.parametrize(
  ("columns", "matrices", "expected"),
  [
    (4096, 2, (1, 8)),
    (8192, 2, (2, 8)),
    (11008, 2, (2, 4)),
    (12288, 2, (2, 8)),
    (12280, 2, (4, 4)),  # with the room before a row
    (16384, 2, (4, 8)),
    (12288, 1, (1, 8)),
    (16384, 1, (2, 8)),
    (16392, 1, None),  # too wide
    (5001, 1, None),
  ],
)
def test_a_block_of_its_own_has_few_warpgroups(columns, matrices, expected):
  share = hopper_row_blocks.share_of(columns, matrices=matrices)
  assert (share and (share.members, share.vector)) == expected
  assert share is None or columns + share.most_shift <= share.stored


@pytest.mark.parametrize(
  ("columns", "matrices", "expected"),
  [
    (12288, 2, 4),
    (11008, 2, 4),
    (5000, 2, 8),
    (4096, 2, 12),
    (512, 2, 16),
    (16384, 2, 3),
    (28560, 2, 2),
    (28664, 2, 2),  # without a shift alone
    (28672, 2, 2),
    (28680, 2, 0),
    (32768, 2, 0),
    (24576, 1, 4),
    (40960, 1, 0),
    (100, 1, 0),
    (56, 1, 0),
    (0, 1, 0),
  ],
)
def test_every_group_has_stages_of_its_own(columns, matrices, expected):
  assert hopper_rows.stages(columns, matrices=matrices, shared_bytes=H200_SHARED_BYTES) == expected


@pytest.mark.parametrize(
  ("shape", "dtype", "options", "reason"),
  [
    ((7239, 11008), "float32", {}, "rows of 16 bits"),
    ((7239, 5001), "bfloat16", {}, "a multiple of 8 from 64 on"),
    ((7239, 56), "bfloat16", {}, "a multiple of 8 from 64 on"),
    ((7239, 32776), "bfloat16", {}, "the kernel takes 32768 at most"),
    ((7239, 32768), "bfloat16", {}, "fit in 232448 bytes .* those of 28672 columns do"),
    ((7239, 4096), "bfloat16", {"config": RowConfig(1, 4096, 1)}, "follow from its columns"),
  ],
)
@runs_hopper
def test_what_it_refuses(shape, dtype, options, reason):
  x = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
  with device.abstract_gpu(**H200), pytest.raises(NotImplementedError, match=reason):
    explain(swiglu_quantize, x, x, implementation="mosaic_gpu", **options)


def test_an_older_jax_and_another_device_are_refused_by_name(monkeypatch):
  x = jax.ShapeDtypeStruct((7239, 4096), jnp.bfloat16)
  with device.abstract_gpu(device_kind="NVIDIA A100-SXM4-80GB", num_cores=108):
    assert "needs Hopper" in explain(quantize_rows, x).refused["mosaic_gpu"]
  monkeypatch.setattr(compat, "CARRIES_ARRAYS", False)
  with device.abstract_gpu(**H200):
    assert "needs jax 0.11" in explain(quantize_rows, x).refused["mosaic_gpu"]


@runs_hopper
@pytest.mark.parametrize(("rows", "is_kept"), [(7239, True), (1024, False)])
def test_l2_keeps_rows_as_they_are_where_it_does_not_hold_all(rows, is_kept):
  def text(function, *operands):
    traced = jax.jit(lambda *x: function(*x, implementation="mosaic_gpu")).trace(*operands)
    return traced.lower(lowering_platforms=("cuda",)).as_text()

  x = jax.ShapeDtypeStruct((rows, 16640), jnp.bfloat16)
  with device.abstract_gpu(**H200):
    assert ("evict_last" in text(quantize_rows, x)) == is_kept
    assert "evict_last" not in text(swiglu_quantize, x, x)


@runs_hopper
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("columns", [4096, 5000, 11008, 12288, 12360])
def test_long_rows_lower(columns, code):
  x = jax.ShapeDtypeStruct((7239, columns), jnp.bfloat16)
  options = {"dtype": code, "implementation": "mosaic_gpu"}
  calls = (
    (lambda *x: swiglu_quantize(*x, **options), (x, x)),
    (lambda x: quantize_rows(x, **options), (x,)),
  )
  for call, operands in calls:
    with device.abstract_gpu(**H200), jax.enable_x64(columns == 5000):
      lowered = jax.jit(call).trace(*operands).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()
    assert "portable" not in lowered.as_text()


@runs_hopper
@pytest.mark.parametrize(
  ("shape", "runs_there"),
  [
    ((7239, 12288), True),
    ((3, 2413, 5000), True),
    ((7239, 2048), False),  # short rows
    ((64, 11008), False),  # few of them
    ((1024, 4096), False),  # all in L2
    ((7239, 4100), False),  # not what it takes
  ],
  ids=str,
)
def test_codes_of_long_rows_from_memory_are_its_own(shape, runs_there):
  x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
  with device.abstract_gpu(**H200):
    gated, given = explain(swiglu_quantize, x, x), explain(swiglu_quantize, x, x, scale=0.5)
    plain = explain(quantize_rows, x)
  expected = "mosaic_gpu" if runs_there else "triton"
  assert {gated.implementation, plain.implementation} == {expected}
  assert given.implementation == "triton"


@runs_hopper
def test_a_tile_is_the_portable_kernels():
  x = jax.ShapeDtypeStruct((7239, 4096), jnp.bfloat16)
  with device.abstract_gpu(**H200):
    assert explain(swiglu_quantize, x, x, config=RowConfig(1, 4096, 1)).implementation == "triton"
