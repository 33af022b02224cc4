"""Shared-memory banks, layouts and coalescing against slow counting."""

import itertools
import random

import pytest

import hw_profiles as hw

FLOAT = 4


def passes(addresses, width):
  """Pairs of lanes that cannot go together, by the definition of a conflict."""
  per_bank = {}
  for address in addresses:
    if address is None:
      continue
    for byte in range(address, address + width):
      per_bank.setdefault(byte // 4 % 32, set()).add(byte // 4)
  return max(map(len, per_bank.values()), default=0)


def test_banks_repeat_every_128_bytes():
  assert [hw.shared_bank(byte) for byte in (0, 3, 4, 124, 127, 128, 132)] == [0, 0, 1, 31, 31, 0, 1]


@pytest.mark.parametrize(
  ("addresses", "transactions"),
  [
    # one bank each, in order, reversed and in different layers
    ([4 * lane for lane in range(32)], 1),
    ([4 * (31 - lane) for lane in range(32)], 1),
    ([4 * lane + 128 * lane for lane in range(32)], 1),
    # a broadcast, and two of them
    ([64] * 32, 1),
    ([0] * 16 + [4] * 16, 1),
    # two words of one bank
    ([0, 128], 2),
    # odd strides are free of conflicts, even ones share gcd(stride, 32) ways
    ([4 * 3 * lane for lane in range(32)], 1),
    ([4 * 2 * lane for lane in range(32)], 2),
    ([4 * 6 * lane for lane in range(32)], 2),
    ([4 * 32 * lane for lane in range(32)], 32),
  ],
)
def test_words(addresses, transactions):
  result = hw.bank_conflicts(addresses, width_bytes=4)
  assert result.transactions == result.ways == transactions
  assert result.conflicts == transactions - 1
  assert result.merges == 0


@pytest.mark.parametrize("width", [1, 2])
def test_narrow_accesses_share_words(width):
  addresses = [width * lane for lane in range(32)]
  assert hw.bank_conflicts(addresses, width_bytes=width).transactions == 1
  # bytes of one bank's words in different layers do conflict
  assert hw.bank_conflicts([0, 1, 128], width_bytes=1).transactions == 2


@pytest.mark.parametrize(("width", "groups"), [(4, 1), (8, 2), (16, 4)])
def test_each_group_of_lanes_is_served_alone(width, groups):
  random.seed(width)
  size = 32 // groups
  for _ in range(200):
    addresses = [None if random.random() < 0.2 else width * random.randrange(64) for _ in range(32)]
    result = hw.bank_conflicts(addresses, width_bytes=width)
    if result.merge_rules:
      continue
    alone = [passes(addresses[first : first + size], width) for first in range(0, 32, size)]
    assert result.transactions == sum(alone)
    assert [request.passes for request in result.requests] == [count for count in alone if count]
    assert [quarter.passes for quarter in result.per_quarter_warp] == [
      passes(addresses[first : first + 8], width) for first in range(0, 32, 8)
    ]


@pytest.mark.parametrize(("rule", "mask"), [("A", 1), ("B", 2)])
@pytest.mark.parametrize(("width", "pairs"), [(8, 1), (16, 2)])
def test_a_rule_merges_neighbouring_groups(rule, mask, width, pairs):
  random.seed(mask + width)
  for _ in range(200):
    addresses = [0] * 32
    for lane in range(32):
      if not lane & mask:
        addresses[lane] = addresses[lane | mask] = width * random.randrange(256)
    result = hw.bank_conflicts(addresses, width_bytes=width)
    assert rule in result.merge_rules
    assert result.merges == pairs
    size = 32 // pairs
    merged = [passes(addresses[first : first + size], width) for first in range(0, 32, size)]
    assert result.transactions == sum(merged)
    alone = sum(
      passes(addresses[first : first + size // 2], width) for first in range(0, 32, size // 2)
    )
    assert result.transactions <= alone


def test_an_idle_partner_satisfies_a_rule():
  every_second = [16 * lane if lane % 2 == 0 else None for lane in range(32)]
  result = hw.bank_conflicts(every_second, width_bytes=16)
  # lanes i and i xor 2 are both active and differ
  assert result.merge_rules == ("A",)
  assert result.merges == 2
  # 8 active lanes of a half-warp, 32 B apart: two layers of banks
  assert [request.passes for request in result.requests] == [2, 2]


def test_a_rule_has_to_hold_for_the_whole_warp():
  pairs = [16 * (lane // 2) for lane in range(32)]
  assert hw.bank_conflicts(pairs, width_bytes=16).transactions == 2
  broken = [*pairs[:-1], 0]
  result = hw.bank_conflicts(broken, width_bytes=16)
  assert result.merge_rules == ()
  assert result.transactions == 4


def test_idle_lanes_need_nothing():
  nobody = hw.bank_conflicts([None] * 32, width_bytes=16)
  assert (nobody.transactions, nobody.conflicts, nobody.requests, nobody.ways) == (0, 0, (), 0)
  first_quarter = hw.bank_conflicts([16 * lane for lane in range(8)], width_bytes=16)
  assert first_quarter.transactions == 1
  assert [quarter.passes for quarter in first_quarter.per_quarter_warp] == [1, 0, 0, 0]
  # a group without a partner does not count as merged
  assert hw.bank_conflicts([0] * 8, width_bytes=16).merges == 0


@pytest.mark.parametrize(
  ("addresses", "width", "message"),
  [
    ([0] * 33, 4, r"addresses_bytes has 33 lanes: expected at most the 32"),
    ([0], 12, r"width_bytes=12: expected one of \(1, 2, 4, 8, 16\)"),
    ([0, 24], 16, r"addresses_bytes\[1\]=24: .* multiple of width_bytes=16; nearest are 16 and 32"),
    ([-4], 4, r"addresses_bytes\[0\]=-4: expected an integer of at least 0"),
  ],
)
def test_wrong_accesses_are_named(addresses, width, message):
  with pytest.raises(ValueError, match=message):
    hw.bank_conflicts(addresses, width_bytes=width)


LAYOUTS = [
  hw.PitchedLayout(rows=5, columns=7),
  hw.PitchedLayout(rows=32, columns=32, pad_columns=1),
  hw.PitchedLayout(rows=8, columns=128, pad_columns=4),
  hw.PitchedLayout(rows=3, columns=16, element_bytes=2, pad_columns=8),
  hw.XorLayout(rows=32, columns=32),
  hw.XorLayout(rows=40, columns=96, group_columns=4),
  hw.XorLayout(rows=9, columns=128, group_columns=32),
  hw.XorLayout(rows=70, columns=64, group_columns=8, element_bytes=2),
  hw.TensorCopySwizzle(rows=64, columns=64, element_bytes=2),
  hw.TensorCopySwizzle(rows=24, columns=96, element_bytes=2, span_bytes=64),
  hw.TensorCopySwizzle(rows=7, columns=16, element_bytes=4, span_bytes=32),
  hw.ZOrderLayout(rows=16, columns=16),
  hw.ZOrderLayout(rows=4, columns=32),
  hw.ZOrderLayout(rows=8, columns=1, element_bytes=2),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_layouts_are_injective_and_stay_inside(layout):
  size = layout.element_bytes
  addresses = [address for row in range(layout.rows) for address in layout.row_addresses(row)]
  assert len(set(addresses)) == layout.rows * layout.columns
  assert all(address % size == 0 and address >= 0 for address in addresses)
  assert max(addresses) + size <= layout.size_bytes
  columns = [layout.column_addresses(column) for column in range(layout.columns)]
  assert sorted(itertools.chain(*columns)) == sorted(addresses)
  if not isinstance(layout, hw.PitchedLayout):
    # a permutation: no byte more than the data
    assert sorted(addresses) == list(range(0, layout.size_bytes, size))


@pytest.mark.parametrize("column", range(32))
@pytest.mark.parametrize("layout", [LAYOUTS[1], LAYOUTS[4]], ids=["pitch 33", "xor"])
def test_padding_and_swizzle_make_rows_and_columns_free(layout, column):
  assert hw.bank_conflicts(layout.column_addresses(column), width_bytes=4).transactions == 1
  assert hw.bank_conflicts(layout.row_addresses(column), width_bytes=4).transactions == 1


def test_a_pitch_shares_banks_as_often_as_its_divisor():
  for pad in range(33):
    layout = hw.PitchedLayout(rows=32, columns=32, pad_columns=pad)
    ways = hw.bank_conflicts(layout.column_addresses(0), width_bytes=4).ways
    pitch = 32 + pad
    assert ways == max(d for d in (1, 2, 4, 8, 16, 32) if pitch % d == 0)


def test_a_swizzled_copy_spreads_a_column_without_padding():
  # 8 rows of one 16-byte column: 8 lanes of a matrix load
  for span, plain_ways in ((128, 8), (64, 4), (32, 2)):
    columns = span // 2
    plain = hw.PitchedLayout(rows=8, columns=columns, element_bytes=2)
    swizzled = hw.TensorCopySwizzle(rows=8, columns=columns, element_bytes=2, span_bytes=span)
    for chunk in range(0, columns, 8):
      column = [swizzled.address(row, chunk) for row in range(8)]
      assert hw.bank_conflicts(column, width_bytes=16).ways == 1
      column = [plain.address(row, chunk) for row in range(8)]
      assert hw.bank_conflicts(column, width_bytes=16).ways == plain_ways
    assert swizzled.size_bytes == plain.size_bytes


@pytest.mark.parametrize(
  ("layout", "vectors"),
  [
    *((hw.PitchedLayout(rows=8, columns=128, pad_columns=pad), pad % 4 == 0) for pad in range(9)),
    (hw.XorLayout(rows=8, columns=128, group_columns=4), True),
    (hw.XorLayout(rows=8, columns=128, group_columns=2), False),
    (hw.XorLayout(rows=8, columns=128), False),
    (hw.TensorCopySwizzle(rows=16, columns=64, element_bytes=2), True),
    (hw.ZOrderLayout(rows=8, columns=8), False),
  ],
)
def test_which_layouts_keep_float4(layout, vectors):
  assert layout.allows_vectors(16) == vectors


@pytest.mark.parametrize(
  ("build", "message"),
  [
    (lambda: hw.XorLayout(rows=4, columns=48), "columns=48: expected a multiple of 32.* is 64"),
    (
      lambda: hw.XorLayout(rows=4, columns=64, group_columns=3),
      "group_columns=3: .* nearest are 2 and 4",
    ),
    (
      lambda: hw.XorLayout(rows=4, columns=64, group_columns=64),
      "group_columns=64: .* most the 32",
    ),
    (lambda: hw.ZOrderLayout(rows=12, columns=8), "rows=12: .* nearest are 8 and 16"),
    (
      lambda: hw.TensorCopySwizzle(rows=8, columns=48, element_bytes=2),
      "columns=48: rows of 96 B; expected a multiple of span_bytes=128",
    ),
    (
      lambda: hw.TensorCopySwizzle(rows=8, columns=64, span_bytes=256),
      "span_bytes=256: expected 32, 64 or 128",
    ),
    (lambda: hw.PitchedLayout(rows=0, columns=1), "rows=0: expected an integer of at least 1"),
    (
      lambda: hw.PitchedLayout(rows=2, columns=2).address(2, 0),
      "row=2: expected 0 to 1, the tile has 2",
    ),
    (
      lambda: hw.PitchedLayout(rows=2, columns=2).allows_vectors(6),
      "width_bytes=6: expected a multiple of element_bytes=4",
    ),
  ],
)
def test_layouts_refuse_what_they_cannot_do(build, message):
  with pytest.raises(ValueError, match=message):
    build()


def test_sectors():
  row = hw.coalescing([4 * lane for lane in range(32)], width_bytes=4)
  assert (row.sectors, row.lines, row.efficiency) == (4, 1, 1.0)
  shifted = hw.coalescing([4 * lane + 4 for lane in range(32)], width_bytes=4)
  assert (shifted.sectors, shifted.lines) == (5, 2)
  strided = hw.coalescing([32 * lane for lane in range(32)], width_bytes=4)
  assert (strided.sectors, strided.efficiency) == (32, 1 / 8)
  # everyone the same word; a vector over a sector's edge; nobody
  assert hw.coalescing([100] * 32, width_bytes=4).sectors == 1
  assert hw.coalescing([24], width_bytes=16).sectors == 2
  assert hw.coalescing([None] * 32, width_bytes=4).efficiency == 1.0
  with pytest.raises(ValueError, match="33 lanes"):
    hw.coalescing([0] * 33, width_bytes=4)


def test_sectors_and_bytes_are_those_counted_one_by_one():
  generator = random.Random(5)
  for _ in range(200):
    width = generator.choice((1, 2, 3, 4, 12, 16, 33, 200))
    lanes = [generator.choice((None, generator.randrange(600))) for _ in range(32)]
    touched = {byte for start in lanes if start is not None for byte in range(start, start + width)}
    found = hw.coalescing(lanes, width_bytes=width)
    assert found.requested_bytes == len(touched)
    assert found.sectors == len({byte // 32 for byte in touched})
    assert found.lines == len({byte // 128 for byte in touched})


def test_sectors_of_a_wide_access_are_not_counted_byte_by_byte():
  assert hw.coalescing([0, 1 << 60], width_bytes=1 << 60).sectors == 1 << 56
