"""Fusion traffic and lifetimes, split reductions, splits of a matmul, quantised projections."""

import itertools
import random

import pytest

import hw_profiles as hw

ROWS, WIDTH = 24, 40


def elementwise_chain(num_operations, *, seed, keep=()):
  """A random chain: each operation reads one or two earlier tensors."""
  chooser = random.Random(seed)
  names = ["x0", "x1"]
  operations = []
  for position in range(num_operations):
    reads = tuple(chooser.sample(names, chooser.choice((1, 2))))
    operations.append(hw.ChainOperation(f"op{position}", reads, f"t{position}"))
    names.append(f"t{position}")
  tensors = tuple(
    hw.ChainTensor(name, (ROWS, WIDTH), chooser.choice(("bfloat16", "float32", "int8")))
    for name in names
  )
  return hw.OperatorChain(tensors, tuple(operations), keep)


def traced_bytes(chain, partition):
  """Walks every element of every kernel with an empty local memory."""
  sizes = {tensor.name: tensor.bytes // (ROWS * WIDTH) for tensor in chain.tensors}
  read_later = [set(chain.results)]
  for operation in reversed(chain.operations):
    read_later.append(read_later[-1] | set(operation.reads))
  read_later = read_later[::-1]
  total, start = 0, 0
  for size in partition:
    local = set()
    for operation in chain.operations[start : start + size]:
      for name in operation.reads:
        if name not in local:
          total += sizes[name]
          local.add(name)
      local.add(operation.writes)
    start += size
    made = {operation.writes for operation in chain.operations[start - size : start]}
    total += sum(sizes[name] for name in made & read_later[start])
  return total * ROWS * WIDTH


@pytest.mark.parametrize("seed", range(8))
def test_traffic_is_what_a_walk_over_one_element_counts(seed):
  chain = elementwise_chain(6, seed=seed, keep=("x1",) if seed % 2 else ())
  for partition in hw.fusion_partitions(6):
    result = hw.fusion_traffic(chain, partition=partition)
    assert result.total_bytes == traced_bytes(chain, partition)
    assert result.total_bytes == result.read_bytes + result.write_bytes
    assert result.launches == len(partition)


@pytest.mark.parametrize("seed", range(8))
def test_removing_a_cut_never_adds_traffic(seed):
  chain = elementwise_chain(6, seed=seed)
  for partition in hw.fusion_partitions(6):
    before = hw.fusion_traffic(chain, partition=partition)
    for cut in range(len(partition) - 1):
      merged = (*partition[:cut], partition[cut] + partition[cut + 1], *partition[cut + 2 :])
      after = hw.fusion_traffic(chain, partition=merged)
      assert after.total_bytes <= before.total_bytes


def test_fusing_can_raise_the_peak_while_it_saves_traffic():
  # the large input can go before the large result comes only if they are kernels of their own
  sizes = {"large": 100, "small": 1, "result": 100}
  tensors = tuple(hw.ChainTensor(name, (size,), "int8") for name, size in sizes.items())
  operations = (
    hw.ChainOperation("reduce", ("large",), "small", span="row"),
    hw.ChainOperation("expand", ("small",), "result"),
  )
  chain = hw.OperatorChain(tensors, operations)
  separate, fused = (hw.fusion_traffic(chain, partition=p) for p in ((1, 1), (2,)))
  assert (separate.total_bytes, fused.total_bytes) == (202, 200)
  assert (separate.memory.peak_bytes, fused.memory.peak_bytes) == (101, 200)


def test_partitions_are_all_compositions_once():
  partitions = list(hw.fusion_partitions(5))
  assert len(set(partitions)) == len(partitions) == 2**4
  assert all(sum(partition) == 5 and min(partition) >= 1 for partition in partitions)
  assert (partitions[0], partitions[-1]) == ((1,) * 5, (5,))
  assert list(hw.fusion_partitions(1)) == [(1,)]


def test_rank_lists_every_partition_best_first():
  chain = hw.swiglu_chain(rows=3, width=5, quantized_dtype="int8")
  ranked = hw.rank_fusions(chain)
  assert {result.partition for result in ranked} == set(hw.fusion_partitions(3))
  assert ranked[0].partition == (3,)
  assert [r.total_bytes for r in ranked] == sorted(r.total_bytes for r in ranked)


def test_traffic_and_peak_of_no_rows_is_nothing():
  result = hw.fusion_traffic(hw.swiglu_chain(rows=0, width=8), partition=(2,))
  assert (result.total_bytes, result.memory.peak_bytes) == (0, 0)


def normalised(rows, width, num_splits=1, keep=()):
  """RMSNorm; with splits each row is `num_splits` rows of the input's last dimension."""
  part = width // num_splits
  tensors = (
    hw.ChainTensor("x", (rows, num_splits, part), "bfloat16"),
    hw.ChainTensor("gamma", (num_splits, part), "bfloat16"),
    hw.ChainTensor("partial", (rows, num_splits, 1), "float32"),
    hw.ChainTensor("scale", (rows, 1), "float32"),
    hw.ChainTensor("y", (rows, num_splits, part), "bfloat16"),
  )
  operations = (
    hw.ChainOperation("squares", ("x",), "partial", span="row"),
    hw.ChainOperation("combine", ("partial",), "scale", span="row"),
    hw.ChainOperation("apply", ("x", "scale", "gamma"), "y"),
  )
  return hw.OperatorChain(tensors, operations, keep)


@pytest.mark.parametrize("num_splits", [2, 8])
def test_a_split_reduction_is_its_three_kernels(num_splits):
  chain = hw.fusion_traffic(normalised(12, 64, num_splits), partition=(1, 1, 1))
  split = hw.split_reduction_traffic(rows=12, width=64, num_splits=num_splits, dtype="bfloat16")
  assert split.total_bytes == chain.total_bytes
  assert split.launches == chain.launches


def test_a_whole_reduction_is_the_fused_kernel_if_a_row_fits():
  chain = normalised(12, 64)
  whole = hw.split_reduction_traffic(rows=12, width=64, num_splits=1, dtype="bfloat16")
  fits = hw.fusion_traffic(chain, partition=(3,), local_capacity_bytes=128)
  assert (fits.total_bytes, fits.launches) == (whole.total_bytes, whole.launches)
  assert fits.groups[0].held_row_bytes == 128
  short = hw.fusion_traffic(chain, partition=(3,), local_capacity_bytes=127)
  assert not short.groups[0].fits
  assert short.total_bytes - fits.total_bytes == 12 * 64 * 2


def test_what_is_made_in_a_kernel_and_kept_between_its_passes_spills_too():
  shape = (4, 16)
  tensors = tuple(
    hw.ChainTensor(name, size, "float32")
    for name, size in (("a", shape), ("b", shape), ("s", (4, 1)), ("c", shape))
  )
  operations = (
    hw.ChainOperation("square", ("a",), "b"),
    hw.ChainOperation("sum", ("b",), "s", span="row"),
    hw.ChainOperation("divide", ("b", "s"), "c"),
  )
  chain = hw.OperatorChain(tensors, operations)
  full = 4 * 16 * 4
  kept = hw.fusion_traffic(chain, partition=(3,))
  assert (kept.total_bytes, kept.groups[0].held_row_bytes) == (2 * full, 64)
  spilled = hw.fusion_traffic(chain, partition=(3,), local_capacity_bytes=0)
  assert spilled.total_bytes == 4 * full


def test_an_operation_over_rows_with_a_whole_row_as_result_walks_it_twice():
  tensors = tuple(hw.ChainTensor(name, (4, 16), "float32") for name in "xy")
  chain = hw.OperatorChain(tensors, (hw.ChainOperation("softmax", ("x",), "y", span="row"),))
  assert hw.fusion_traffic(chain, partition=(1,)).groups[0].held_row_bytes == 64
  short = hw.fusion_traffic(chain, partition=(1,), local_capacity_bytes=63)
  assert short.read_bytes == 2 * short.write_bytes == 2 * 4 * 16 * 4


def test_nothing_passes_inside_a_kernel_across_an_operation_that_spans_the_tensor():
  tensors = tuple(hw.ChainTensor(name, (8, 8), "float32") for name in "abcd")
  operations = (
    hw.ChainOperation("scale", ("a",), "b"),
    hw.ChainOperation("transpose", ("b",), "c", span="tensor"),
    hw.ChainOperation("add", ("c",), "d"),
  )
  chain = hw.OperatorChain(tensors, operations)
  for partition, reader in (((2, 1), "transpose"), ((1, 2), "add"), ((3,), "transpose")):
    assert reader in hw.fusion_obstacle(chain, partition)
    with pytest.raises(ValueError, match=f"{reader} reads .* spans the tensor"):
      hw.fusion_traffic(chain, partition=partition)
  assert [result.partition for result in hw.rank_fusions(chain)] == [(1, 1, 1)]


def test_storage_that_a_result_takes_over_lowers_the_peak():
  shape = (ROWS, WIDTH)
  tensors = tuple(hw.ChainTensor(name, shape, "float32") for name in "abc")
  size = tensors[0].bytes

  def peak(overwrites):
    first = hw.ChainOperation("f", ("a",), "b", overwrites=overwrites)
    chain = hw.OperatorChain(tensors, (first, hw.ChainOperation("g", ("b",), "c")))
    return hw.memory_use(chain, (1, 1))

  assert peak(None).peak_bytes == 2 * size
  assert peak("a").resident_bytes == (size, 2 * size)
  assert {life.name: life.storage for life in peak("a").lifetimes}["b"] == "a"


def test_what_the_caller_keeps_stays_in_memory():
  tensors = tuple(hw.ChainTensor(name, (2, 2), "float32") for name in "abc")
  operations = (hw.ChainOperation("f", ("a",), "b"), hw.ChainOperation("g", ("b",), "c"))
  freed = hw.memory_use(hw.OperatorChain(tensors, operations), (1, 1))
  kept = hw.memory_use(hw.OperatorChain(tensors, operations, keep=("a", "b")), (1, 1))
  assert (freed.resident_bytes, kept.resident_bytes) == ((32, 32), (32, 48))
  assert (kept.peak_bytes, kept.peak_step) == (48, 1)
  # kept, so it is written even though its only reader is in the same kernel
  fused = hw.fusion_traffic(hw.OperatorChain(tensors, operations, keep=("b",)), partition=(2,))
  assert fused.groups[0].write_bytes == {"b": 16, "c": 16}


A, B, C = (hw.ChainTensor(name, (2, 2), "float32") for name in "abc")
F = hw.ChainOperation("f", ("a",), "b")


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: hw.OperatorChain((A, B), ()), "at least one"),
    (lambda: hw.OperatorChain((A, A, B), (F,)), "'a' appears more than once"),
    (lambda: hw.OperatorChain((A,), (F,)), "f names 'b'"),
    (lambda: hw.OperatorChain((A, B), (F,), keep=("z",)), "keep='z'"),
    (
      lambda: hw.OperatorChain((A, B, C), (hw.ChainOperation("g", ("b",), "c"), F)),
      "g reads 'b' before",
    ),
    (
      lambda: hw.OperatorChain((A, B), (F, hw.ChainOperation("g", ("a",), "b"))),
      "g writes 'b', which is written already",
    ),
    (
      lambda: hw.OperatorChain(
        (A, B, C),
        (
          hw.ChainOperation("f", ("a",), "b", overwrites="a"),
          hw.ChainOperation("g", ("a", "b"), "c"),
        ),
      ),
      "overwrites='a' of f: g still needs it",
    ),
    (
      lambda: hw.ChainOperation("t", ("a",), "b", span="tensor", overwrites="a"),
      "before its last read",
    ),
    (lambda: hw.ChainOperation("t", ("a",), "b", overwrites="b"), "one of its inputs, a"),
    (lambda: hw.ChainOperation("t", ("a",), "b", span="column"), "span='column'"),
    (
      lambda: hw.OperatorChain(
        (hw.ChainTensor("a", (2, 2), "int8"), B),
        (hw.ChainOperation("f", ("a",), "b", overwrites="a"),),
      ),
      "it has 4 B, 'b' needs 16 B",
    ),
    (lambda: hw.fusion_traffic(hw.OperatorChain((A, B), (F,)), partition=(2,)), "expected 1"),
    (lambda: hw.fusion_traffic(hw.OperatorChain((A, B), (F,)), partition=(0, 1)), "partition=0"),
    (lambda: hw.ChainTensor("a", (-1,), "int8"), "shape of a=-1"),
    (lambda: list(hw.fusion_partitions(0)), "num_operations=0"),
  ],
)
def test_chains_that_make_no_sense_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 10, 4), (5, 4096, 8), (7, 100, 100)])
def test_split_reduction_is_what_a_walk_over_all_groups_counts(sizes):
  rows, width, num_splits = sizes
  bounds = [width * part // num_splits for part in range(num_splits + 1)]
  lengths = [stop - start for start, stop in itertools.pairwise(bounds)]
  first = apply = 0
  for _row, length in itertools.product(range(rows), lengths):
    first += length * 2
    apply += length * 2 + length * 4 + length * 4  # input, weight, result
  if num_splits == 1:
    expected = first + apply - rows * width * 2  # the row stays local
  else:
    partial = 4 * rows * num_splits
    # partial sums are written and read, a scale written once and read by each split
    expected = first + apply + 2 * partial + 4 * rows + partial
  result = hw.split_reduction_traffic(
    rows=rows,
    width=width,
    num_splits=num_splits,
    dtype="bfloat16",
    weight_dtype="float32",
    out_dtype="float32",
  )
  assert result.total_bytes == expected
  assert result.split_width == max(lengths)
  assert result.groups == rows * num_splits


def test_split_reduction_without_weight_and_its_errors():
  options = {"rows": 4, "width": 8, "dtype": "bfloat16"}
  with_weight = hw.split_reduction_traffic(**options, num_splits=2)
  without = hw.split_reduction_traffic(**options, num_splits=2, has_weight=False)
  assert with_weight.total_bytes - without.total_bytes == 4 * 8 * 2
  with pytest.raises(ValueError, match="num_splits=9: a row has 8 element"):
    hw.split_reduction_traffic(**options, num_splits=9)
  with pytest.raises(ValueError, match="scale_reads_per_row=0"):
    hw.split_reduction_traffic(**options, num_splits=2, scale_reads_per_row=0)


@pytest.mark.parametrize("axis", ["m", "n", "k"])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_matmul_split_is_what_its_executors_read_and_write(axis, parts):
  sizes = {"m": 12, "k": 20, "n": 7}
  shares = [dict(sizes) for _ in range(parts)]
  for position, share in enumerate(shares):
    size = sizes[axis]
    share[axis] = size * (position + 1) // parts - size * position // parts
  read = sum(2 * (s["m"] * s["k"] + s["k"] * s["n"]) for s in shares)
  partial = sum(4 * s["m"] * s["n"] for s in shares) if axis == "k" and parts > 1 else 0
  result = hw.matmul_split_traffic(**sizes, axis=axis, parts=parts, in_dtype="bfloat16")
  assert result.a_read_bytes + result.b_read_bytes == read
  assert result.total_bytes == read + 2 * partial + 2 * 12 * 7
  assert result.part_size == max(share[axis] for share in shares)
  assert result.replicated_bytes == read - 2 * (12 * 20 + 20 * 7)
  assert result.launches == (2 if partial else 1)
  assert result.output_is_sharded == (axis != "k" and parts > 1)


def test_matmul_split_errors():
  sizes = {"m": 4, "k": 4, "n": 4, "in_dtype": "bfloat16"}
  with pytest.raises(ValueError, match="axis='q': expected one of m, n, k"):
    hw.matmul_split_traffic(**sizes, axis="q", parts=2)
  with pytest.raises(ValueError, match="parts=5: k=4; expected at most 4"):
    hw.matmul_split_traffic(**sizes, axis="k", parts=5)


@pytest.mark.parametrize("shape", [(64, 32, 48), (50, 33, 41), (1, 1, 1), (0, 8, 8)])
@pytest.mark.parametrize("blocks", [(16, 16), (32, 24), (128, 7)])
@pytest.mark.parametrize("scale", ["row", "held_row", "fixed"])
@pytest.mark.parametrize("fuse", [True, False])
def test_projection_traffic_is_what_a_walk_over_all_tiles_counts(shape, blocks, scale, fuse):
  (m, k, n), (block_m, block_n) = shape, blocks
  counted = m * k * 2 if scale == "row" or not fuse else 0
  counted += 0 if fuse else m * k
  for row in range(0, m, block_m):
    for column in range(0, n, block_n):
      rows, columns = min(block_m, m - row), min(block_n, n - column)
      counted += rows * k * (2 if fuse else 1) + k * columns + 2 * rows * columns
  result = hw.quantized_projection_traffic(
    m=m, k=k, n=n, block_m=block_m, block_n=block_n, fuse=fuse, scale=scale
  )
  assert result.total_bytes == counted


@pytest.mark.parametrize("scale", ["row", "held_row", "fixed"])
def test_the_cheaper_projection_is_chosen_and_ties_are_fused(scale):
  def projection(columns, fuse):
    return hw.quantized_projection_traffic(
      m=64, k=32, n=16 * columns, block_m=16, block_n=16, fuse=fuse, scale=scale
    )

  for columns in range(1, 6):
    separate, fused = (projection(columns, fuse) for fuse in (False, True))
    chosen = projection(columns, None)
    assert chosen.total_bytes == min(separate.total_bytes, fused.total_bytes)
    # a first pass over A only ties, and only with one block; without it, up to three
    assert chosen.fused == (columns <= (1 if scale == "row" else 3))
    tie = fused.total_bytes == separate.total_bytes
    assert tie == (columns == (1 if scale == "row" else 3))


def test_scales_are_counted_when_asked_for():
  sizes = {"m": 64, "k": 32, "n": 48, "block_m": 16, "block_n": 16}
  for fuse in (True, False):
    plain = hw.quantized_projection_traffic(**sizes, fuse=fuse)
    counted = hw.quantized_projection_traffic(**sizes, fuse=fuse, scale_dtype="float32")
    assert counted.total_bytes - plain.total_bytes == 4 * 64 * (1 + 3)
  fixed = hw.quantized_projection_traffic(**sizes, fuse=True, scale="fixed", scale_dtype="float32")
  assert (fixed.scale_bytes, fixed.launches) == (0, 1)
  with pytest.raises(ValueError, match="scale='column'"):
    hw.quantized_projection_traffic(**sizes, fuse=True, scale="column")


def chain_time(partition, *, rows=1024, profile="h200_sxm", **sizes):
  chain = hw.swiglu_chain(rows=rows, width=12288, quantized_dtype="float8_e4m3fn", **sizes)
  return hw.fusion_time(
    chain, partition=partition, profile=profile, config=hw.RowConfig(1, 2048, 1)
  )


def test_large_chains_take_the_time_of_their_bytes():
  gpu = hw.get_profile("h200_sxm")
  rate = gpu.dram_bandwidth_bytes_per_s * gpu.sustained_dram_fraction
  for partition, mib in (((1, 1, 1), 156), ((1, 2), 108), ((2, 1), 108), ((3,), 60)):
    time = chain_time(partition, rows=65536)
    assert time.bound == "dram"
    assert time.total_us == pytest.approx(64 * mib * 2**20 / rate * 1e6, rel=0.01)


def test_a_chain_that_fits_l2_reads_there_what_it_wrote():
  small = chain_time((1, 1, 1), rows=64)
  once = hw.fusion_traffic(
    hw.swiglu_chain(rows=64, width=12288, quantized_dtype="float8_e4m3fn"), partition=(1, 1, 1)
  )
  gpu = hw.get_profile("h200_sxm")
  rate = gpu.dram_bandwidth_bytes_per_s * gpu.sustained_dram_fraction
  reread = 2 * 64 * 12288 * 2  # T and Z
  assert small.times_us["dram"] == pytest.approx((once.total_bytes - reread) / rate * 1e6)


def test_what_a_chain_has_no_time_for_is_refused():
  wide = hw.OperatorChain(
    tuple(hw.ChainTensor(name, (4, 8), "bfloat16") for name in "ab"),
    (hw.ChainOperation("softmax", ("a",), "b", span="row"),),
  )
  config = hw.RowConfig(1, 2048, 1)
  with pytest.raises(ValueError, match="softmax spans more than an element"):
    hw.fusion_time(wide, partition=(1,), profile="h200_sxm", config=config)
  with pytest.raises(ValueError, match="profile='ascend_910b3'"):
    chain_time((3,), profile="ascend_910b3")
  with pytest.raises(ValueError, match="arithmetic of x"):
    hw.ChainOperation("x", ("a",), "b", arithmetic=-1)
