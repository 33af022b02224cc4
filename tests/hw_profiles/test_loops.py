"""Loop nests against direct execution: results, counts, lifetimes and legality."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

import hw_profiles as hw
import reference
from hw_profiles import loops
from hw_profiles.loops.iteration import axis_values, loop_extents
from hw_profiles.loops.rounding import FORMATS


def operands(m, k, n, seed=0):
  chooser = random.Random(seed)
  return {
    "A": [[chooser.randint(-9, 9) for _ in range(k)] for _ in range(m)],
    "W": [[chooser.randint(-9, 9) for _ in range(n)] for _ in range(k)],
  }


def product(inputs):
  a, w = inputs["A"], inputs["W"]
  columns = list(zip(*w, strict=True))
  return {
    (i, j): sum(x * y for x, y in zip(row, column, strict=True))
    for i, row in enumerate(a)
    for j, column in enumerate(columns)
  }


def unrounded_matmul(m, k, n):
  return loops.without_rounding(loops.matmul_nest(m=m, k=k, n=n), "matmul")


def rearranged(nest, seed):
  """A random sequence of splits, reorders and fusions of stage "matmul"."""
  chooser = random.Random(seed)
  for step in range(6):
    order = list(nest.stage("matmul").order)
    move = chooser.choice(("split", "reorder", "fuse"))
    if move == "split":
      names = {"outer": f"o{step}", "inner": f"i{step}"}
      nest = loops.split(nest, "matmul", chooser.choice(order), chooser.randint(1, 4), **names)
    elif move == "reorder":
      chooser.shuffle(order)
      nest = loops.reorder(nest, "matmul", order)
    elif len(order) > 1:
      place = chooser.randrange(len(order) - 1)
      nest = loops.fuse(nest, "matmul", *order[place : place + 2], fused=f"f{step}")
  return nest


@pytest.mark.parametrize("seed", range(12))
def test_any_rearrangement_of_a_matmul_visits_every_iteration_once(seed):
  m, k, n = 3, 5, 4
  inputs = operands(m, k, n, seed)
  nest = rearranged(unrounded_matmul(m, k, n), seed)
  result = loops.run(nest, inputs)
  assert result.arrays["C"] == product(inputs)
  assert result.executions["matmul"] == m * k * n
  assert result.element_writes["C"] == m * n
  verdict = loops.check_legality(unrounded_matmul(m, k, n), nest, allow_reordering=True)
  assert verdict.legal
  assert verdict.effect in ("none", "order")


@pytest.mark.parametrize("blocks", list(itertools.product((1, 2, 3), (2, 5), (1, 2, 7))))
def test_a_fused_matmul_silu_computes_what_the_two_nests_do(blocks):
  sizes = {"m": 3, "k": 5, "n": 4}
  blocks = dict(zip(("block_m", "block_n", "block_k"), blocks, strict=True))
  fused = loops.fused_matmul_silu_nest(**sizes, **blocks)
  inputs = operands(3, 5, 4)
  assert loops.compare_on(loops.matmul_silu_nest(**sizes), fused, inputs) is None
  verdict = loops.check_legality(loops.matmul_silu_nest(**sizes), fused)
  assert verdict.effect == "none"
  # only one tile of C exists at a time
  tile = loops.footprint(fused, "activation", "C", at="jo")
  assert tile.shape == (min(blocks["block_m"], 3), min(blocks["block_n"], 4))
  assert len(loops.run(fused, inputs).arrays["C"]) <= tile.elements
  assert loops.intermediate_bytes(fused) == {}


def counted_accesses(nest, at):
  """Tiles and elements that change hands, walking the loops one iteration at a time."""
  stage = nest.stage("matmul")
  extents = loop_extents(stage, stage.extents)
  fixed = stage.order[: stage.order.index(at) + 1]
  rest = stage.order[len(fixed) :]
  held, loads, elements, complete = {}, {}, {}, {}
  for outer in itertools.product(*(range(extents[loop]) for loop in fixed)):
    touched = {access.array: set() for access in stage.accesses}
    for inner in itertools.product(*(range(extents[loop]) for loop in rest)):
      names = (*fixed, *rest)
      values = axis_values(stage, extents, dict(zip(names, (*outer, *inner), strict=True)))
      if values is not None:
        for access in stage.accesses:
          touched[access.array].add(access.at(values))
    for array, indices in touched.items():
      if indices and held.get(array) != indices:
        held[array] = indices
        loads[array] = loads.get(array, 0) + 1
        elements[array] = elements.get(array, 0) + len(indices)
        complete.setdefault(array, set()).update(indices)
  return loads, elements, complete


@pytest.mark.parametrize("sizes", [(6, 8, 4), (5, 7, 3)])
@pytest.mark.parametrize("order", list(itertools.permutations(("i", "j", "k"))))
@pytest.mark.parametrize("extra", ["none", "fuse", "nested"])
def test_tile_accesses_are_what_a_walk_over_the_loops_counts(sizes, order, extra):
  m, k, n = sizes
  blocks = {"i": 2, "j": 3, "k": 3}
  nest = loops.tile_stage(
    unrounded_matmul(m, k, n), "matmul", {axis: blocks[axis] for axis in order}
  )
  at = f"{order[2]}o"
  if extra == "fuse":
    nest = loops.fuse(nest, "matmul", f"{order[0]}o", f"{order[1]}o")
  elif extra == "nested":
    nest = loops.split(nest, "matmul", at, 2, outer="far", inner="near")
    at = "near"
  loads, elements, complete = counted_accesses(nest, at)
  for access in loops.tile_accesses(nest, "matmul", at=at):
    if access.array == "C":
      final = len(complete["C"])
      returning = loads["C"] - math.ceil(m / 2) * math.ceil(n / 3)
      assert (access.stores, access.loads) == (loads["C"], returning)
      assert access.store_bytes == 4 * (elements["C"] - final) + 2 * final
      assert access.load_bytes == 4 * (elements["C"] - final)
    else:
      assert (access.loads, access.stores) == (loads[access.array], 0)
      assert access.load_bytes == 2 * elements[access.array]


def walked(order, m, k, n):
  """Addresses of the first full run of the inner loop, and outputs alive at once."""
  extents = {"i": m, "k": k, "j": n}
  touched = {"A": [], "B": [], "C": []}
  first, last = {}, {}
  points = list(itertools.product(*(range(extents[loop]) for loop in order)))
  for time, point in enumerate(points):
    at = dict(zip(order, point, strict=True))
    if time < extents[order[-1]]:
      touched["A"].append(at["i"] * k + at["k"])
      touched["B"].append(at["k"] * n + at["j"])
      touched["C"].append(at["i"] * n + at["j"])
    output = (at["i"], at["j"])
    first.setdefault(output, time)
    last[output] = time
  alive = max(
    sum(1 for output in first if first[output] <= time <= last[output])
    for time in range(len(points))
  )
  return touched, alive


@pytest.mark.parametrize("order", ["ijk", "ikj", "jik", "jki", "kij", "kji"])
@pytest.mark.parametrize("sizes", [(4, 6, 5), (3, 40, 2), (2, 3, 70)])
def test_access_patterns_and_live_outputs_agree_with_a_walk(order, sizes):
  m, k, n = sizes
  nest = loops.reorder(loops.matmul_nest(m=m, k=k, n=n, dtype="float32"), "matmul", list(order))
  touched, alive = walked(order, m, k, n)
  patterns = loops.access_patterns(nest, "matmul", line_bytes=32)
  for pattern, elements in zip(patterns, touched.values(), strict=True):
    assert pattern.lines_per_sweep == len({element * 4 // 32 for element in elements})
    if len(elements) > 1:
      assert pattern.stride_elements == elements[1] - elements[0]
  (accumulator,) = (
    b for b in loops.buffer_lifetimes(nest, "matmul", at=order[-1]) if b.array == "C"
  )
  assert (accumulator.elements, accumulator.bytes) == (alive, 4 * alive)


def test_row_major_weights_want_j_inside():
  nest = loops.matmul_nest(m=1024, k=4096, n=12288)
  by_order = {}
  for order in ("ijk", "ikj"):
    changed = loops.reorder(nest, "matmul", list(order))
    a, b, _ = loops.access_patterns(changed, "matmul")
    (c,) = (x for x in loops.buffer_lifetimes(changed, "matmul", at=order[-1]) if x.array == "C")
    by_order[order] = (a.kind, b.stride_elements, b.lines_per_sweep, c.elements)
  assert by_order["ijk"] == ("contiguous", 12288, 4096, 1)
  assert by_order["ikj"] == ("invariant", 1, 12288 * 2 // 128, 12288)


def test_lines_of_a_strided_walk_are_those_its_elements_lie_in():
  nest = loops.transpose_nest(rows=10, columns=12, dtype="float32")
  read, written = loops.access_patterns(nest, "transpose", line_bytes=64)
  rows = [{4 * j // 64 for j in range(12)}, {4 * 10 * j // 64 for j in range(12)}]
  assert [read.lines_per_sweep, written.lines_per_sweep] == list(map(len, rows))
  assert written.line_fetches == 10 * len(rows[1])


def test_the_footprint_of_a_sliding_window_overlaps():
  window = loops.stage(
    "window", "B[i]", loops.COPY, ["A[2*i + r]"], extents={"i": 8, "r": 3}, combine="sum"
  )
  nest = loops.LoopNest((window,), {"A": "float32", "B": "float32"})
  assert loops.footprint(nest, "window", "A").shape == (2 * 7 + 2 + 1,)
  tiled = loops.split(nest, "window", "i", 4)
  assert loops.footprint(tiled, "window", "A", at="io").shape == (9,)
  (read, _) = loops.tile_accesses(tiled, "window", at="io")
  assert (read.loads, read.load_bytes) == (2, 4 * (9 + 9))


def blur(size):
  twice = loops.ScalarOperation("twice", lambda value: 2 * value)
  add = loops.ScalarOperation("add", lambda left, right: left + right)
  first = loops.stage("first", "B[x]", twice, ["A[x]"], extents={"x": size + 1})
  second = loops.stage("second", "C[i]", add, ["B[i]", "B[i + 1]"], extents={"i": size})
  return loops.LoopNest((first, second), dict.fromkeys("ABC", "float32"))


@pytest.mark.parametrize("factor", [1, 2, 3, 8])
def test_computing_a_producer_in_tiles_repeats_what_they_share(factor):
  size = 8
  nest = blur(size)
  moved = loops.compute_at(loops.split(nest, "second", "i", factor), "first", "second", "io")
  verdict = loops.check_legality(nest, moved)
  assert verdict.legal
  tiles = -(-size // factor)
  assert verdict.executions["first"] == (size + 1, size + tiles)
  assert verdict.effect == ("none" if tiles == 1 else "cost")
  inputs = {"A": list(range(size + 1))}
  assert loops.run(moved, inputs).arrays["C"] == {(i,): 2 * i + 2 * (i + 1) for i in range(size)}


@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_a_producer_may_run_inside_a_producer(outer, inner):
  add = loops.ScalarOperation("add", lambda left, right: left + right)
  size = 6
  stages = tuple(
    loops.stage(name, f"{to}[x]", add, [f"{of}[x]", f"{of}[x + 1]"], extents={"x": extent})
    for name, of, to, extent in (
      ("first", "A", "B", size + 2),
      ("second", "B", "C", size + 1),
      ("third", "C", "D", size),
    )
  )
  nest = loops.LoopNest(stages, dict.fromkeys("ABCD", "float32"))
  moved = loops.split(loops.split(nest, "third", "x", outer), "second", "x", inner)
  moved = loops.compute_at(moved, "second", "third", "xo")
  moved = loops.compute_at(moved, "first", "second", "xo")
  verdict = loops.check_legality(nest, moved)
  assert (verdict.legal, verdict.effect) == (True, "cost")
  inputs = {"A": [value**2 for value in range(size + 3)]}
  assert loops.compare_on(nest, moved, inputs) is None
  # only what one tile needs of B and C is kept
  kept = loops.run(moved, inputs).arrays
  assert len(kept["C"]) <= outer + 1
  assert len(kept["B"]) <= inner + 1


def skewed(m, n):
  add = loops.ScalarOperation("add", lambda left, right: left + right)
  scan = loops.stage(
    "scan", "S[i, j]", add, ["S[i - 1, j + 1]", "X[i, j]"], extents={"i": m, "j": n}
  )
  return loops.LoopNest((scan,), {"S": "float32", "X": "float32"})


def test_interchanging_loops_over_a_skewed_recurrence_is_illegal():
  nest = skewed(2, 2)
  (dependence,) = loops.dependences(nest)
  assert (dependence.kind, dependence.distance) == ("recurrence", (1, -1))
  verdict = loops.check_legality(nest, loops.reorder(nest, "scan", ["j", "i"]))
  assert (verdict.legal, verdict.effect) == (False, "mathematics")
  witness = verdict.witness
  for changed, value in ((False, witness.original), (True, witness.changed)):
    again = loops.reorder(nest, "scan", ["j", "i"]) if changed else nest
    assert loops.run(again, witness.inputs).arrays["S"][witness.index] == value


def test_dependences_of_a_matmul_and_its_activation():
  found = loops.dependences(loops.matmul_silu_nest(m=2, k=3, n=4))
  assert [(d.kind, d.array, d.source, d.sink, d.axes) for d in found] == [
    ("reduction", "C", "matmul", "matmul", ("k",)),
    ("flow", "C", "matmul", "activation", ()),
  ]


def test_the_order_of_a_sum_matters_only_to_a_rounded_accumulator():
  nest = unrounded_matmul(1, 3, 1)
  backwards = loops.reorder(loops.split(nest, "matmul", "k", 2), "matmul", ["ki", "ko"])
  inputs = {"A": [[1, Fraction(1, 2**24), Fraction(1, 2**24)]], "W": [[1], [1], [1]]}
  first = {"A": [inputs["A"][0][::-1]], "W": inputs["W"]}
  small_first = loops.run(nest, first, accumulator="float32").arrays["C"][0, 0]
  large_first = loops.run(nest, inputs, accumulator="float32").arrays["C"][0, 0]
  assert (large_first, small_first) == (1, 1 + Fraction(1, 2**23))

  verdict = loops.check_legality(nest, backwards)
  assert (verdict.legal, verdict.effect) == (False, "order")
  assert loops.check_legality(nest, backwards, allow_reordering=True).legal
  witness = verdict.witness
  assert witness.accumulator == "float32"
  assert loops.compare_on(nest, backwards, witness.inputs) is None
  assert loops.compare_on(nest, backwards, witness.inputs, accumulator="float32") is not None


def test_a_maximum_may_be_taken_in_any_order():
  nest = loops.LoopNest(
    (
      loops.stage(
        "peak", "R[i]", loops.ABSOLUTE, ["A[i, k]"], extents={"i": 2, "k": 5}, combine="max"
      ),
    ),
    {"A": "float32", "R": "float32"},
  )
  backwards = loops.reorder(loops.split(nest, "peak", "k", 2), "peak", ["ki", "ko"])
  assert loops.check_legality(nest, backwards).effect == "none"


@pytest.mark.parametrize(("k", "factor"), [(2, 1), (4, 2), (5, 2), (3, 2)])
def test_an_operation_that_commutes_with_the_sum_may_run_on_partial_sums(k, factor):
  matmul = unrounded_matmul(1, k, 2).stages[0]
  double = loops.ScalarOperation("double", lambda value: 2 * value)
  scale = loops.stage("scale", "Y[i, j]", double, ["C[i, j]"], extents={"i": 1, "j": 2})
  nest = loops.LoopNest((matmul, scale), dict.fromkeys(("A", "W", "C", "Y"), "float32"))
  moved = loops.consume_partial(nest, producer="matmul", consumer="scale", axis="k", factor=factor)
  # expressions do not know that doubling distributes; no input tells the two apart
  verdict = loops.check_legality(nest, moved)
  assert verdict.effect == "mathematics"
  assert verdict.witness is None
  inputs = operands(1, k, 2)
  assert loops.run(moved, inputs).arrays["Y"] == {
    index: 2 * value for index, value in product(inputs).items()
  }


def test_a_witness_is_small_and_can_be_run_again():
  nest = loops.matmul_silu_nest(m=2, k=3, n=2)
  for changed in (
    loops.without_rounding(nest, "matmul"),
    loops.consume_partial(nest, producer="matmul", consumer="activation", axis="k", factor=2),
  ):
    witness = loops.check_legality(nest, changed).witness
    assert loops.run(nest, witness.inputs).arrays["Y"][witness.index] == witness.original
    assert loops.run(changed, witness.inputs).arrays["Y"][witness.index] == witness.changed
    used = [v for elements in witness.inputs.values() for v in elements.values() if v]
    assert len(used) <= 4  # two terms of one element are enough
    assert "Y[" in str(witness)
    assert loops.check_legality(nest, changed).witness == witness


@pytest.mark.parametrize("name", FORMATS)
def test_rounding_agrees_with_the_reference(name):
  generator = np.random.default_rng(0)
  largest = float(hw.loops.rounding.largest_number(name))
  mantissas = generator.standard_normal(300)
  values = mantissas * 2.0 ** generator.integers(-12, 9, 300)
  neighbours = reference.round_to(values, name).astype(np.float64)
  ties = (neighbours + reference.round_to(values * 1.01, name).astype(np.float64)) / 2
  for value in [*values, *ties, 0.0, -0.0, largest, -largest]:
    if abs(value) <= largest:
      assert float(loops.round_number(float(value), name)) == float(
        reference.round_to(np.float64(value), name)
      )


def test_rounding_beyond_the_largest_number():
  assert loops.round_number(1000, "float8_e4m3fn") == 448
  assert loops.round_number(-math.inf, "float8_e4m3fn") == -448
  assert loops.round_number(2.0**130, "bfloat16") == math.inf
  assert loops.round_number(-70000, "float16") == -math.inf
  assert math.isnan(loops.round_number(math.nan, "float8_e4m3fn"))
  with pytest.raises(ValueError, match="name='float12'"):
    loops.round_number(1.0, "float12")


def test_silu_at_the_ends():
  silu = loops.SILU.function
  assert silu(-math.inf) == 0
  assert silu(math.inf) == math.inf
  assert silu(-800) == pytest.approx(0, abs=1e-300)
  assert math.isnan(silu(math.nan))


@pytest.mark.parametrize(
  ("text", "shown"),
  [
    ("A[i, 2*j + r - 1]", "A[i, 2*j + r + -1]"),
    ("A[-(i - 2*j)]", "A[-1*i + 2*j]"),
    ("A[3*(i + 1), 0]", "A[3*i + 3, 0]"),
    ("A[i - i]", "A[0]"),
  ],
)
def test_accesses_are_read_from_text(text, shown):
  assert str(loops.parse_access(text)) == shown


@pytest.mark.parametrize(
  "text", ["A[i*j]", "A[i // 2]", "A[i", "A", "A[f(i)]", "A[i][j]", "A[1.5]"]
)
def test_what_is_not_affine_is_refused(text):
  with pytest.raises(ValueError, match="expected"):
    loops.parse_access(text)


MATMUL = loops.matmul_silu_nest(m=4, k=4, n=4)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: loops.split(MATMUL, "matmul", "q", 2), "loop='q': matmul has i, j, k"),
    (lambda: loops.split(MATMUL, "matmul", "k", 0), "factor=0"),
    (lambda: loops.split(MATMUL, "matmul", "k", 2, outer="i"), "'i': matmul has it already"),
    (lambda: loops.split(MATMUL, "gemm", "k", 2), "stage='gemm': expected one of matmul"),
    (lambda: loops.reorder(MATMUL, "matmul", ["i", "i"]), "named twice"),
    (lambda: loops.fuse(MATMUL, "matmul", "i", "k"), "reorder first"),
    (lambda: loops.compute_at(MATMUL, "activation", "matmul", "i"), "read by none"),
    (lambda: loops.compute_at(MATMUL, "matmul", "activation", "k"), "loop='k'"),
    (
      lambda: loops.consume_partial(
        MATMUL, producer="matmul", consumer="activation", axis="i", factor=2
      ),
      "axis='i': a parallel axis",
    ),
    (lambda: loops.without_rounding(MATMUL, "activation"), "does not round"),
    (lambda: loops.footprint(MATMUL, "matmul", "Y"), "array='Y': matmul uses A, W, C"),
    (lambda: loops.footprint(MATMUL, "matmul", "A", at="z"), "at='z'"),
    (lambda: loops.matmul_nest(m=0, k=1, n=1), "extent of axis i=0"),
    (lambda: loops.run(MATMUL, {"A": [[1] * 4] * 4}), r"inputs: W\[0, 0\] is read"),
    (lambda: loops.run(MATMUL, operands(4, 4, 4), max_statements=9), "max_statements"),
    (lambda: loops.check_legality(MATMUL, loops.matmul_nest(m=4, k=4, n=4)), "never writes 'Y'"),
    (
      lambda: loops.stage("s", "B[i + 1]", loops.COPY, ["A[i]"], extents={"i": 2}),
      "expected each of the parallel axes",
    ),
    (
      lambda: loops.stage("s", "B[i]", loops.COPY, ["A[i, k]"], extents={"i": 2, "k": 2}),
      "1 reduction axes and combine=None",
    ),
    (
      lambda: loops.stage("s", "B[i]", loops.COPY, ["A[k]"], extents={"i": 2}),
      "axis 'k' has no extent",
    ),
    (lambda: loops.LoopNest(MATMUL.stages, {"A": "float32"}), "dtypes has no 'W'"),
  ],
)
def test_wrong_arguments_are_named(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_counts_need_whole_loops_and_a_stage_of_its_own():
  fused = loops.fuse(MATMUL, "matmul", "i", "j", fused="f")
  cut = loops.split(fused, "matmul", "f", 3)
  with pytest.raises(ValueError, match="loop='f' of matmul: a fused loop that was split"):
    loops.tile_accesses(cut, "matmul", at="fi")
  moved = loops.compute_at(MATMUL, "matmul", "activation", "j")
  with pytest.raises(ValueError, match="it runs inside activation"):
    loops.tile_accesses(moved, "matmul", at="k")
