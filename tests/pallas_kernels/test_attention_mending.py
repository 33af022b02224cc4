"""Results of the Hopper kernels computed again where they are in doubt, and nowhere else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
  Case,
  assert_gradients_inside_bound,
  assert_inside_bound,
  quick,
)

from pallas_kernels import device
from pallas_kernels.attention import api, portable, portable_backward, tiles
from pallas_kernels.attention.operands import Upstream
from pallas_kernels.lowering import jax_private

H200 = {"device_kind": "NVIDIA H200", "num_cores": 132}
TO_THE_END = {"is_causal": True, "causal_alignment": "bottom_right"}
BLOCK = portable.MENDING.block_q
SPAN = tiles.MENDED_SPAN * BLOCK
# two spans, of which the second ends with a block that is ragged and more that are not there
LONG = SPAN + BLOCK + 30
SHORT = 40
# what the kernel before left: nothing that attention of these operands gives
LEFT = 77.0
MENDED_BY = [
  pytest.param(True, id="interpret"),
  pytest.param(False, id="triton", marks=pytest.mark.gpu),
]
# (sequence, head, row) of those in doubt
DOUBTED = {
  "nothing": (),
  "several blocks of a span": ((0, 1, 3), (0, 1, 4), (0, 1, 2 * BLOCK), (0, 1, 5 * BLOCK + 9)),
  "both ends of a span": ((1, 0, 0), (1, 0, SPAN - 1)),
  "the span after it": ((1, 1, SPAN),),
  "the ragged block at the end": ((0, 0, LONG - 1),),
  "two heads": ((0, 0, 70), (1, 1, LONG - 31)),
}
doubted = pytest.mark.parametrize("at", DOUBTED.values(), ids=DOUBTED)
mended_by = pytest.mark.parametrize("interpret", MENDED_BY)
EVERYWHERE = tuple(
  (batch, head, row) for batch in range(2) for head in range(2) for row in range(0, LONG, BLOCK)
)


def request_of(case: Case, arrays):
  """The request and operands of a call, as kernels take them."""
  none = dict.fromkeys(
    (
      *("bias", "mask", "scale", "causal_alignment", "query_seq_lengths", "key_value_seq_lengths"),
      *("local_window_size", "query_segment_ids", "key_value_segment_ids", "logits_soft_cap"),
      *("precision", "config", "implementation"),
    )
  )
  return api.make_request(**{**none, "is_causal": False, **case.options, **arrays})


def doubt_of(at, heads: int) -> jax.Array:
  """0 for the rows that are right; the others are no numbers, as a kernel leaves them."""
  found = np.zeros((2, heads, LONG), np.float32)
  for place in at:
    found[place] = np.nan
  return jnp.asarray(found)


def left(*shape: int, dtype="float32") -> jax.Array:
  return jnp.full(shape, LEFT, dtype)


def expected(complete, at):
  """`complete` [batch, heads, LONG, ...] in the blocks with a row in doubt, else what was left."""
  found = np.full_like(complete, LEFT)
  for batch, head, row in at:
    rows = slice(row // BLOCK * BLOCK, (row // BLOCK + 1) * BLOCK)
    found[batch, head, rows] = complete[batch, head, rows]
  return found


def rows_first(x) -> np.ndarray:
  """[batch, length, heads, size] as [batch, heads, length, size]."""
  return np.swapaxes(np.asarray(x), 1, 2)


def forward(case: Case, arrays, interpret, *doubts):
  """Out and residual for each set of rows in doubt, by one program."""
  request, operands = request_of(case, arrays)
  sizes = operands.sizes

  def run(operands, doubt):
    given = portable.Doubtful(
      left(sizes.batch, sizes.seq_q, sizes.heads, sizes.value_dim, dtype=request.dtype),
      left(sizes.batch, sizes.heads, sizes.seq_q),
      doubt,
    )
    return portable.mend(request.rule, operands, given, interpret=interpret)

  mend = quick(run)
  found = (mend(operands, doubt_of(at, sizes.heads)) for at in doubts)
  return [(out, jnp.swapaxes(residual, 1, 2)) for out, residual in found]


FORWARD = Case("forward", (2, LONG, SHORT, 2, 1, 16, 16), options=TO_THE_END)


@mended_by
@doubted
def test_blocks_with_a_row_in_doubt_are_computed_again_and_no_others(at, interpret, rng):
  arrays = FORWARD.arrays(rng)
  complete, found = forward(FORWARD, arrays, interpret, EVERYWHERE, at)
  for one, whole in zip(found, complete, strict=True):
    np.testing.assert_array_equal(rows_first(one), expected(rows_first(whole), at))


OPTIONS = [
  FORWARD,
  Case(
    "arrays of pairs",
    (2, LONG, SHORT, 2, 1, 16, 24),
    bias=(1, 2, LONG, SHORT),
    mask=(2, 1, LONG, 1),
    segments=3,
  ),
  Case(
    "lengths",
    (2, LONG, SHORT, 2, 2, 24, 16),
    "bfloat16",
    lengths=((LONG - 9, 3), (31, SHORT)),
    options={"local_window_size": (20, 3), "causal_alignment": "bottom_right"},
  ),
]


@mended_by
@pytest.mark.parametrize("case", OPTIONS, ids=str)
def test_what_is_computed_again_is_inside_the_bound(case, interpret, rng):
  arrays = case.arrays(rng)
  (result,) = forward(case, arrays, interpret, EVERYWHERE)
  assert_inside_bound(case, arrays, result, "interpret" if interpret else "triton")


def gradients(case: Case, arrays, d_out, interpret, *doubts):
  """dQ, or dK and dV, for each set of rows of the longer side in doubt, by one program."""
  request, operands = request_of(case, arrays)
  sizes = operands.sizes
  how = {"config": portable.MENDING, "interpret": interpret}

  def run(operands, d_out, doubt):
    out, residual = portable.attention(request.rule, operands, **how)
    delta = jnp.swapaxes(jnp.sum((d_out * out).astype(jnp.float32), axis=-1), 1, 2)
    upstream = Upstream(residual, delta, d_out)
    if sizes.seq_q == LONG:
      given = portable_backward.Doubted((left(*operands.query.shape, dtype=request.dtype),), doubt)
      return {
        "query": portable_backward.query_gradient(
          request.rule, operands, upstream, given=given, **how
        )
      }
    given = portable_backward.Doubted(
      tuple(left(*x.shape, dtype=request.dtype) for x in (operands.key, operands.value)), doubt
    )
    found = portable_backward.key_value_gradients(
      request.rule, operands, upstream, given=given, **how
    )
    return dict(zip(("key", "value"), found, strict=True))

  heads = sizes.heads if sizes.seq_q == LONG else sizes.kv_heads
  mend = quick(run)
  return [mend(operands, d_out, doubt_of(at, heads)) for at in doubts]


OF_QUERIES = dataclasses.replace(FORWARD, name="dq")
OF_KEYS = Case("dkv", (2, SHORT, LONG, 4, 2, 16, 24), options=TO_THE_END)


def random_d_out(case: Case, rng):
  batch, seq_q, _, heads, _, _, value_size = case.sizes
  return jnp.asarray(rng.standard_normal((batch, seq_q, heads, value_size)), case.dtype)


@mended_by
@pytest.mark.parametrize("case", [OF_QUERIES, OF_KEYS], ids=str)
@pytest.mark.parametrize(
  "at",
  [DOUBTED["several blocks of a span"], DOUBTED["two heads"]],
  ids=["several blocks of a span", "two heads"],
)
def test_gradients_in_doubt_are_computed_again_and_no_others(at, case, interpret, rng):
  arrays, d_out = case.arrays(rng), random_d_out(case, rng)
  complete, found = gradients(case, arrays, d_out, interpret, EVERYWHERE, at)
  assert_gradients_inside_bound(
    case, arrays, d_out, complete, "interpret" if interpret else "triton"
  )
  for name, whole in complete.items():
    np.testing.assert_array_equal(rows_first(found[name]), expected(rows_first(whole), at))


def test_in_shard_map_with_varying_axes_checked(rng):
  devices = jax.devices()[:2]
  mesh = jax.make_mesh(
    (len(devices),), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices
  )
  spec = jax.sharding.PartitionSpec
  arrays = FORWARD.arrays(rng)
  request, operands = request_of(FORWARD, arrays)
  at = DOUBTED["both ends of a span"]

  def run(query, key, value, doubt):
    shape = (*query.shape[:3], value.shape[3])
    # varies over the mesh as the results of a kernel do
    given = jax.lax.pcast(left(*shape), "x", to="varying")
    residual = jax.lax.pcast(left(shape[0], shape[2], shape[1]), "x", to="varying")
    return portable.mend(
      request.rule,
      operands._replace(query=query, key=key, value=value),
      portable.Doubtful(given, residual, doubt),
      interpret=True,
    )

  sharded = jax.shard_map(
    run, mesh=mesh, in_specs=(spec("x"),) * 4, out_specs=spec("x"), check_vma=True
  )
  out, _ = quick(sharded)(*operands[:3], doubt_of(at, 2))
  ((whole, _),) = forward(FORWARD, arrays, True, EVERYWHERE)
  np.testing.assert_array_equal(rows_first(out), expected(rows_first(whole), at))


def lowered(seq: int):
  """`mend`, and its operands' shapes, of two heads of `seq` rows."""
  case = Case("lowered", (1, seq, seq, 2, 1, 128, 128), "bfloat16", options=TO_THE_END)
  batch, _, _, heads, kv_heads, size, _ = case.sizes
  shapes = [
    jax.ShapeDtypeStruct((batch, seq, count, size), jnp.bfloat16)
    for count in (heads, kv_heads, kv_heads)
  ]
  request, operands = request_of(case, dict(zip(("query", "key", "value"), shapes, strict=True)))
  numbers = jax.ShapeDtypeStruct((batch, heads, seq), jnp.float32)
  given = portable.Doubtful(operands.query, numbers, numbers)

  def run(query, key, value, *given):
    return portable.mend(
      request.rule,
      operands._replace(query=query, key=key, value=value),
      portable.Doubtful(*given),
      interpret=False,
    )

  return run, (*shapes, *given)


@pytest.mark.parametrize("seq", [1, 200, 1024, 5000, 131072])
def test_every_length_lowers(seq):
  run, shapes = lowered(seq)
  with device.abstract_gpu(**H200):
    text = jax.jit(run).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
  assert "attention_mend" in text


@pytest.mark.skipif(
  jax.__version__ not in jax_private.SUPPORTED_JAX, reason="no Triton IR with this JAX"
)
@pytest.mark.parametrize(("seq", "programs"), [(64, 2), (1024, 2), (1025, 4), (131072, 256)])
def test_a_program_looks_at_sixteen_blocks(seq, programs):
  run, shapes = lowered(seq)
  with device.abstract_gpu(**H200):
    (kernel,) = jax_private.triton_kernels(run, *shapes)
  assert kernel.grid == (programs, 1, 1)
