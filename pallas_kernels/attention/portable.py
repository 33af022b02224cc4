"""O and the log-sum-exp as a plain `pl.pallas_call` with explicit BlockSpecs.

One program computes `block_q` rows of one head: it walks the keys that they see
in blocks of `block_kv`, with the online softmax of `softmax`. Blocks that no
row sees are not visited, and only those that some row sees in part are masked.

Runs interpreted anywhere, and compiles for NVIDIA GPUs through the Triton
lowering, where the walk is pipelined `num_stages` deep by Triton. Head sizes
are padded to a power of two inside a block, with masks. The grid is
one-dimensional because CUDA limits only its other two axes to 65535.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu_triton

from hw_profiles import AttentionConfig
from hw_profiles.attention.multistage import padded_dim
from pallas_kernels import sharding
from pallas_kernels.attention import schedule, softmax
from pallas_kernels.attention.blocks import kernel_body, store_vector
from pallas_kernels.attention.operands import AttentionOperands
from pallas_kernels.attention.query_tiles import QueryTiles
from pallas_kernels.attention.rule import AttentionRule
from pallas_kernels.attention.softmax import SoftmaxState
from pallas_kernels.attention.tiles import Program, as_stored


def default_warps(rows: int) -> int:
  """Warps of a block where the config leaves them open; see `AttentionConfig.num_warps`."""
  return 8 if rows >= 128 else 4


def compiler_params(*, num_warps: int, num_stages: int) -> Any:
  """For the Triton lowering."""
  return plgpu_triton.CompilerParams(num_warps=num_warps, num_stages=num_stages)


def is_spec(x: Any) -> bool:
  """For `jax.tree.leaves` of BlockSpecs."""
  return isinstance(x, pl.BlockSpec)


def attention(
  rule: AttentionRule,
  operands: AttentionOperands,
  *,
  config: AttentionConfig,
  interpret: bool,
) -> tuple[jax.Array, jax.Array]:
  """out [batch, T, N, Hv] in the query's dtype, and float32 residual [batch, N, T].

  Args:
    rule: What is computed.
    operands: Arrays of a dtype of at most 32 bits; sizes at least 1.
    config: Tile sizes; to compile, ones that `hw_profiles.plan` says fit.
    interpret: True runs it with the Pallas interpreter, on any device.
  """
  sizes = operands.sizes
  out_shape = (
    sharding.out_struct(
      (sizes.batch, sizes.seq_q, sizes.heads, sizes.value_dim),
      operands.query.dtype,
      operands.query,
    ),
    sharding.out_struct((sizes.batch, sizes.heads, sizes.seq_q), jnp.float32, operands.query),
  )
  return _call(rule, operands, config=config, out_shape=out_shape, interpret=interpret)


class Doubtful(NamedTuple):
  """A result to compute again where it is in doubt.

  Attributes:
    out: [batch, T, N, Hv].
    residual: float32 [batch, N, T].
    doubt: float32 [batch, N, T]: 0 for the rows that are right.
  """

  out: jax.Array
  residual: jax.Array
  doubt: jax.Array


# It seldom has anything to do: a small tile, which compiles fastest
MENDING = AttentionConfig(
  block_q=64,
  block_kv=32,
  num_stages=1,
  block_kv_dkv=64,
  block_q_dkv=32,
  block_q_dq=64,
  block_kv_dq=32,
)


def mend(
  rule: AttentionRule, operands: AttentionOperands, given: Doubtful, *, interpret: bool
) -> tuple[jax.Array, jax.Array]:
  """`given` with every block of rows computed again that has one in doubt."""
  return _call(
    rule,
    operands,
    config=MENDING,
    out_shape=(
      sharding.out_struct(given.out.shape, given.out.dtype, given.out),
      sharding.out_struct(given.residual.shape, jnp.float32, given.residual),
    ),
    interpret=interpret,
    given=given,
  )


def _call(
  rule: AttentionRule,
  operands: AttentionOperands,
  *,
  config: AttentionConfig,
  out_shape: tuple[Any, Any],
  interpret: bool,
  given: Doubtful | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The kernel over all tiles, or over those of `given` that are in doubt."""
  tiles = QueryTiles.create(
    rule,
    operands,
    block_q=config.block_q,
    block_kv=config.block_kv,
    mending=given is not None,
  )
  operands = as_stored(operands)
  limits = tiles.limits(operands)
  inputs = (given, operands, limits)
  structure = jax.tree.structure(inputs)

  def body(number: Any, *refs: Any) -> None:
    given_refs, operand_refs, limits_ref = jax.tree.unflatten(structure, refs[:-2])

    def compute(index: Any) -> None:
      _tile(tiles, tiles.program(number, operand_refs, limits_ref, index), *refs[-2:])

    tiles.each_block(number, None if given_refs is None else given_refs.doubt, compute)

  specs = (tiles.rows_spec(out_shape[0]), tiles.vector_spec(out_shape[1]))
  in_specs = (
    None if given is None else Doubtful(*specs, specs[1]),
    tiles.operand_specs(operands),
    None if limits is None else tiles.limits_spec(limits),
  )
  out, residual = pl.pallas_call(
    kernel_body(body, interpret=interpret, like=operands.query),
    out_shape=out_shape,
    grid=(tiles.order.programs,),
    in_specs=jax.tree.leaves(in_specs, is_leaf=is_spec),
    out_specs=specs,
    input_output_aliases={} if given is None else {0: 0, 1: 1},
    compiler_params=None
    if interpret
    else compiler_params(
      num_warps=config.num_warps or default_warps(config.block_q), num_stages=config.num_stages
    ),
    interpret=interpret,
    name="attention_portable" if given is None else "attention_mend",
  )(*jax.tree.leaves(inputs))
  return out, residual


def _tile(tiles: QueryTiles, program: Program, out_ref: Any, residual_ref: Any) -> None:
  """One tile of O."""
  pair, sizes, refs = tiles.pair, tiles.sizes, program.refs
  q = tiles.load_rows(refs.query, sizes.head_dim, program)

  def visit(block: Any, state: SoftmaxState, masked: bool) -> SoftmaxState:
    keys = tiles.walked(block)
    k = tiles.load_keys(refs.key, sizes.head_dim, keys, program, masked=masked)
    v = tiles.load_keys(refs.value, sizes.value_dim, keys, program, masked=masked)
    scores = pair.scores(q, k, refs.bias, program.rows, keys, masked=masked)
    visible = tiles.visible(program, keys) if masked else None
    if visible is not None:
      scores = jnp.where(visible, scores, jnp.full_like(scores, -jnp.inf))
    return softmax.step(
      state,
      scores,
      exponent=pair.logits.exponent,
      weigh=lambda weights: pair.weigh(weights, v, visible),
    )

  state = schedule.walk(
    program.regions, visit, softmax.start(pair.block_q, padded_dim(sizes.value_dim))
  )
  out, residual = softmax.finish(state)
  if program.used_rows is not None:
    out = jnp.where(program.used_rows[:, None], out, jnp.zeros_like(out))
    residual = jnp.where(program.used_rows, residual, jnp.full_like(residual, -jnp.inf))
  tiles.store_rows(out_ref, out, sizes.value_dim, program)
  store_vector(tiles.block_of(residual_ref, program), residual, left=program.rows_left)
