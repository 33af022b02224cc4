"""`pallas_kernels.runtime`: few programs for many numbers of rows, and their accounts."""

import functools
import itertools
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hw_profiles
import pallas_kernels
from pallas_kernels.runtime import STRATEGIES, ExecutableCache, RowPrograms, choose


def affine(x, w):
  """Rows times a shared matrix; a tree of results."""
  return {"product": x @ w, "sums": x.sum(axis=1)}


def rows_of(count, columns=8, seed=0):
  """Small integers, whose sums of products are exact in any order."""
  return np.random.default_rng(seed).integers(-4, 5, (count, columns)).astype(np.float32)


WEIGHTS = rows_of(8, 4, seed=1)
BUCKETS = {"general": (16,), "bucketed": (16, 64), "specialised": ()}


def programs_for(strategy, function=affine, **options):
  return RowPrograms(function, buckets=BUCKETS[strategy], strategy=strategy, **options)


# --- results


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("arrays", [np.asarray, jnp.asarray])
def test_every_number_of_rows_has_its_results(strategy, arrays):
  programs = programs_for(strategy)
  for count in (1, 15, 16, 17, 40, 64):
    x = arrays(rows_of(count))
    result = programs(x, arrays(WEIGHTS))
    assert result["product"].shape == (count, 4)
    np.testing.assert_array_equal(result["product"], x @ WEIGHTS)
    np.testing.assert_array_equal(result["sums"], x.sum(axis=1))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_op_of_the_library_gives_each_row_its_bits(strategy):
  """Operands of few bits: sums are exact, whatever the tile that a size is given."""
  generator = np.random.default_rng(2)
  x = generator.integers(-2, 3, (19, 32)).astype(np.float32)
  w, other = (generator.integers(-2, 3, (32, 8)).astype(np.float32) for _ in range(2))
  matmul = functools.partial(pallas_kernels.matmul, implementation="interpret")
  programs = programs_for(strategy, matmul)
  np.testing.assert_array_equal(programs(x, w), x @ w)
  np.testing.assert_array_equal(programs(x, other), x @ other)
  assert programs.use.programs.misses == 1


def test_rows_that_hold_nan_stay_where_they_are():
  programs = programs_for("bucketed")
  x = rows_of(10)
  x[3] = np.nan
  product = np.asarray(programs(x, WEIGHTS)["product"])
  assert np.isnan(product[3]).all()
  assert np.isfinite(np.delete(product, 3, axis=0)).all()


def test_padding_may_stay_and_is_of_zeros():
  programs = programs_for("bucketed", cut=False)
  result = programs(rows_of(10), WEIGHTS)
  assert result["product"].shape == (16, 4)
  np.testing.assert_array_equal(result["product"][10:], 0)


def test_no_rows_run_nothing():
  for strategy in STRATEGIES:
    programs = programs_for(strategy)
    result = programs(rows_of(0), WEIGHTS)
    assert (result["product"].shape, result["sums"].shape) == ((0, 4), (0,))
    assert result["product"].dtype == jnp.float32
    assert (programs.use.calls, programs.use.programs.misses) == (1, 0)


def test_several_arguments_have_rows_and_one_may_be_none():
  def function(x, w, bias, state):
    return (x @ w if bias is None else x @ w + bias) + state[0], state[1] * 2

  programs = RowPrograms(function, buckets=(16,), rows=(0, 2, 3))
  x, state = rows_of(5), (rows_of(5, 4, seed=3), rows_of(5, 2, seed=4))
  for bias in (None, rows_of(5, 4, seed=5)):
    first, second = programs(x, WEIGHTS, bias, state)
    expected = x @ WEIGHTS + state[0] + (0 if bias is None else bias)
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, 2 * state[1])
  assert programs.use.programs.misses == 2


# --- accounts


def test_calls_compile_what_their_strategy_says():
  lengths = [3, 10, 16, 17, 40, 64, 10, 40]
  compiled = {"general": 1, "bucketed": 2, "specialised": 6}
  computed = {"general": 16 * 1 * 4 + 16 * (2 + 3 + 4 + 3), "bucketed": 4 * 16 + 4 * 64}
  for strategy in STRATEGIES:
    programs = programs_for(strategy)
    for length in lengths:
      programs(rows_of(length), WEIGHTS)
    use = programs.use
    assert use.programs.misses == compiled[strategy]
    assert (use.calls, use.rows) == (len(lengths), sum(lengths))
    assert use.computed_rows == computed.get(strategy, sum(lengths))
    assert use.extra_fraction == (use.computed_rows - use.rows) / use.rows
    assert use.programs.compile_us > 0
  known = hw_profiles.bucketing([(1, length) for length in lengths], buckets=BUCKETS["bucketed"])
  assert (known.padded_rows, len(known.programs)) == (computed["bucketed"], 2)


def test_what_else_a_program_depends_on_is_compiled_for():
  programs = programs_for("bucketed")
  x = rows_of(10)
  programs(x, WEIGHTS)
  programs(x.astype(jnp.bfloat16), WEIGHTS)
  programs(x, WEIGHTS[:, :2])
  programs(x[:5], WEIGHTS)  # the same bucket
  assert (programs.use.programs.misses, programs.use.programs.hits) == (3, 1)
  with jax.default_matmul_precision("highest"):
    programs(x, WEIGHTS)
  assert programs.use.programs.misses == 4


@pytest.mark.parametrize("capacity", [1, 2, 3, None])
def test_the_cache_is_the_models(capacity):
  keys = random.Random(7).choices("abcde", k=60)
  clock = itertools.count().__next__
  cache = ExecutableCache(capacity=capacity, clock=clock)
  for key in keys:
    assert cache.get(key, lambda key=key: key.upper()) == key.upper()
  known = hw_profiles.program_cache(keys, capacity=capacity, compile_us=1e6)
  use = cache.use
  for name in ("hits", "misses", "evictions", "recompilations", "compile_us", "hits_by"):
    assert getattr(use, name) == getattr(known, name), name
  assert cache.keys == known.resident


def test_a_program_that_cannot_be_made_leaves_the_others():
  cache = ExecutableCache(capacity=1)
  cache.get("a", lambda: 1)

  def fail():
    raise RuntimeError("no room")

  with pytest.raises(RuntimeError, match="no room"):
    cache.get("b", fail)
  assert (cache.keys, cache.use.misses, cache.use.evictions) == (("a",), 1, 0)
  assert cache.get("a", fail) == 1
  cache.clear()
  assert cache.keys == ()
  assert cache.get("a", lambda: 2) == 2
  assert cache.use.recompilations == 1


def test_threads_compile_a_program_once():
  cache, made, start = ExecutableCache(), [], threading.Barrier(8)

  def ask():
    start.wait()
    cache.get("a", lambda: made.append(1))

  threads = [threading.Thread(target=ask) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert (len(made), cache.use.hits, cache.use.misses) == (1, 7, 1)


def test_a_program_that_is_there_is_found_while_another_is_made():
  cache, making, found = ExecutableCache(), threading.Event(), threading.Event()
  cache.get("a", lambda: "A")

  def slow():
    making.set()
    assert found.wait(timeout=60)
    return "B"

  thread = threading.Thread(target=lambda: cache.get("b", slow))
  thread.start()
  assert making.wait(timeout=60)
  assert cache.get("a", slow) == "A"
  assert cache.get("c", lambda: "C") == "C"  # made meanwhile, too
  found.set()
  thread.join()
  assert cache.keys == ("a", "c", "b")
  assert (cache.use.hits, cache.use.misses) == (1, 3)


def test_a_failure_is_of_the_thread_that_makes_and_the_next_one_makes_again():
  cache, making, fail = ExecutableCache(), threading.Event(), threading.Event()
  errors = []

  def failing():
    making.set()
    assert fail.wait(timeout=60)
    raise RuntimeError("no room")

  def ask():
    try:
      cache.get("a", failing)
    except RuntimeError as error:
      errors.append(error)

  threads = [threading.Thread(target=ask)]
  threads[0].start()
  assert making.wait(timeout=60)
  threads.append(threading.Thread(target=lambda: cache.get("a", lambda: "A")))
  threads[1].start()
  fail.set()
  for thread in threads:
    thread.join()
  assert [str(error) for error in errors] == ["no room"]
  assert (cache.keys, cache.use.misses) == (("a",), 1)


def test_programs_may_be_made_of_others_but_not_of_themselves():
  cache = ExecutableCache(capacity=2)
  assert cache.get("a", lambda: cache.get("b", lambda: "B") + "A") == "BA"
  assert (cache.keys, cache.use.misses) == (("b", "a"), 2)
  with pytest.raises(RuntimeError, match="key='c': making this program asks for itself"):
    cache.get("c", lambda: cache.get("c", lambda: "C"))
  assert cache.get("c", lambda: "C") == "C"
  assert cache.use.evictions == 1


# --- the choice


def test_the_choice_is_the_models_over_the_rows_that_each_strategy_computes():
  calls = [(8, 256), (1, 1536), (1, 2048)]

  def run_us(rows):
    return 20 + rows / 4

  found = choose(calls, buckets=(512, 2048), run_us=run_us, compile_us=5e3, repeats=1)
  group = {
    "general": (8 + 3 + 4) * run_us(512),
    "bucketed": 8 * run_us(512) + 2 * run_us(2048),
    "specialised": 8 * run_us(256) + run_us(1536) + run_us(2048),
  }
  programs = {"general": 1, "bucketed": 2, "specialised": 3}
  for name, once_us in group.items():
    assert found.total_us[name] == pytest.approx(once_us + programs[name] * 5e3)
  assert found.best == "general"
  assert [part.name for part in found.ranges][-1] == "specialised"
  again = choose(
    calls, buckets=(512, 2048), run_us=run_us, compile_us=5e3, repeats=1, cached=(256, 1536, 2048)
  )
  assert again.best == "specialised"


def test_a_choice_needs_a_bucket():
  for calls in ([], [(1, 4)]):
    with pytest.raises(ValueError, match=r"buckets=\(\): expected at least one"):
      choose(calls, buckets=(), run_us=float, compile_us=1.0, repeats=1)


def test_the_planner_s_times_make_a_choice():
  def run_us(rows):
    problem = hw_profiles.MatmulProblem(m=rows, k=4096, n=12288)
    return hw_profiles.rank(problem, "rtx_pro_6000", top=1)[0].predicted_us

  calls = [(8, 256), (1, 1536), (1, 2048)]
  found = choose(calls, buckets=(512, 2048), run_us=run_us, compile_us=100e3, repeats=10**6)
  assert found.best == found.fastest_run == "specialised"


def test_the_program_of_a_call_is_what_the_choice_counted():
  bucketed, general = programs_for("bucketed"), programs_for("general")
  for rows in (1, 16, 17, 64):
    (size,) = bucketed.program_rows(rows)
    assert size == hw_profiles.bucketing([(1, rows)], buckets=(16, 64)).assigned[0][2]
    assert general.program_rows(rows) == (16,) * -(-rows // 16)


# --- errors


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"strategy": "exact"}, "strategy='exact': expected one of general, bucketed, specialised"),
    ({"strategy": "bucketed"}, r"buckets=\(\): strategy='bucketed' needs at least one"),
    ({"buckets": (0, 8)}, r"buckets=\(0, 8\): strategy='bucketed' needs .* at least 1"),
    ({"buckets": (8.0,)}, r"buckets=\(8\.0,\).* expected integers"),
    ({"strategy": "specialised", "buckets": (8,)}, "compiles each number of rows; expected none"),
    ({"strategy": "general", "buckets": (8, 16)}, "has one block; expected one"),
    ({"buckets": 8}, "buckets=8: expected a sequence"),
    ({"buckets": (8,), "rows": 0}, "rows=0: expected a sequence"),
    ({"buckets": (8,), "rows": ()}, r"rows=\(\): expected the arguments that have rows first"),
    ({"buckets": (8,), "capacity": 0}, "capacity=0: expected an integer of at least 1, or None"),
  ],
)
def test_wrong_options_are_told(options, said):
  with pytest.raises(ValueError, match=said):
    RowPrograms(affine, **options)


def test_what_is_no_function_is_told_and_numpys_integers_are_integers():
  with pytest.raises(ValueError, match="function=3: expected a function of arrays"):
    RowPrograms(3, buckets=(8,))
  programs = RowPrograms(affine, buckets=(np.int64(16),), rows=(np.int32(0),))
  assert programs.program_rows(3) == (16,)
  assert isinstance(programs.program_rows(3)[0], int)


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap])
def test_a_traced_value_that_the_function_closes_over_is_refused(transform):
  """Compiled it would be an operand that no call gives, or outlive its trace."""
  made = []

  def closed(y):
    programs = RowPrograms(lambda x: x * y, buckets=(16,))
    made.append(programs)
    return programs(rows_of(5)).sum()

  y = jnp.arange(3.0) if transform is jax.vmap else jnp.float32(2)
  with pytest.raises(ValueError, match="function: closes over a traced value"):
    transform(closed)(y)
  assert made[0].use.programs.misses == 0
  # an array that is there is a constant
  constant = jnp.full(8, 2.0)
  programs = RowPrograms(lambda x: x * constant, buckets=(16,))
  np.testing.assert_array_equal(programs(rows_of(16)), 2 * rows_of(16))


def test_wrong_arguments_are_told():
  programs = programs_for("bucketed")
  with pytest.raises(ValueError, match=r"rows=65: .*add a bucket of at least 65, or strategy="):
    programs(rows_of(65), WEIGHTS)
  with pytest.raises(ValueError, match=r"argument 1: expected arrays, got 3; bind options"):
    programs(rows_of(5), 3)
  with pytest.raises(ValueError, match="argument 0: expected rows first, got a scalar"):
    programs(jnp.float32(3), WEIGHTS)
  with pytest.raises(ValueError, match=r"0 arguments: rows=\(0,\) expects at least 1"):
    programs()
  with pytest.raises(ValueError, match="argument 0: is traced; inside of jit, grad or vmap call"):
    jax.jit(programs)(rows_of(5), WEIGHTS)
  with pytest.raises(ValueError, match="argument 0: is traced"):
    jax.vmap(programs, in_axes=(0, None))(np.stack([rows_of(5)] * 2), WEIGHTS)
  with pytest.raises(ValueError, match="argument 1: is traced"):
    jax.grad(lambda w: programs(rows_of(5), w)["sums"].sum())(WEIGHTS)
  both = RowPrograms(affine, buckets=(16,), rows=(0, 1))
  with pytest.raises(ValueError, match="argument 0 has 5, argument 1 has 8; expected equally many"):
    both(rows_of(5), WEIGHTS)
  assert programs.use.calls == 0


@pytest.mark.parametrize(
  ("function", "said"),
  [
    (lambda x, w: w, r"result 0: of 16 rows it has shape \(16, 16\), of 17 \(16, 16\)"),
    (lambda x, w: x.sum(), r"result 0: of 16 rows it has shape \(\), of 17 \(\)"),
    (lambda x, w: (x, x @ x.T), r"result 1: of 16 rows it has shape \(16, 16\), of 17 \(17, 17\)"),
  ],
)
def test_a_function_that_is_not_of_rows_is_refused(function, said):
  """Its result may happen to have as many as the bucket; with a row more it does not."""
  programs = RowPrograms(function, buckets=(16,))
  with pytest.raises(ValueError, match=said):
    programs(rows_of(5, 16), rows_of(16, 16))
  with pytest.raises(ValueError, match=r"result [01]: of 0 rows it has shape"):
    programs(rows_of(0, 16), rows_of(16, 16))
  assert (programs.use.calls, programs.use.programs.misses) == (0, 0)
