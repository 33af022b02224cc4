"""The attention that JAX's transformations see: batching around the kernels, and gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.attention import implementations, xla
from pallas_kernels.attention.implementations import GradientCall
from pallas_kernels.attention.operands import AttentionOperands, Upstream
from pallas_kernels.attention.request import AttentionRequest
from pallas_kernels.batching import batched, common_batch, sum_shared
from pallas_kernels.dtypes import accumulator_dtype

_DIFFERENTIATED = ("query", "key", "value", "bias")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(
  request: AttentionRequest, operands: AttentionOperands
) -> tuple[jax.Array, jax.Array]:
  """out [batch, T, N, Hv] and residual [batch, N, T], with vmap as more batch."""
  structure = jax.tree.structure(operands)

  def run(*flat: jax.Array) -> tuple[jax.Array, jax.Array]:
    return implementations.run(request, jax.tree.unflatten(structure, flat))

  out, residual = batched(run, *jax.tree.leaves(operands))
  return out, residual


def _forward(
  request: AttentionRequest, operands: AttentionOperands
) -> tuple[tuple[jax.Array, jax.Array], tuple[Any, ...]]:
  out, residual = attention(request, operands)
  return (out, residual), (operands, out, residual)


def _backward(
  request: AttentionRequest,
  kept: tuple[AttentionOperands, jax.Array, jax.Array],
  above: tuple[jax.Array, jax.Array],
) -> tuple[AttentionOperands]:
  operands = kept[0]
  found = gradients(request, *kept, *above)
  summed: dict[str, Any] = {
    name: sum_shared(gradient, getattr(operands, name))
    for name, gradient in zip(_DIFFERENTIATED, found, strict=False)
  }
  return (AttentionOperands(**{**dict.fromkeys(AttentionOperands._fields), **summed}),)


attention.defvjp(_forward, _backward)


def _upstream(
  out: jax.Array, residual: jax.Array, d_out: jax.Array, d_residual: jax.Array
) -> Upstream:
  """With delta = rowsum(dO ⊙ O) - dL, which the residual's gradient is as good as a part of."""
  wide = accumulator_dtype(out.dtype)
  along = jnp.sum(d_out.astype(wide) * out.astype(wide), axis=-1)
  delta = jnp.swapaxes(along, 1, 2) - d_residual.astype(wide)
  return Upstream(residual=residual, delta=delta, d_out=d_out)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gradients(
  request: AttentionRequest,
  operands: AttentionOperands,
  out: jax.Array,
  residual: jax.Array,
  d_out: jax.Array,
  d_residual: jax.Array,
) -> tuple[jax.Array, ...]:
  """Gradients of query, key, value and, where there is one, bias.

  The first three are [batch, ...], not yet summed over a batch that shared an
  operand; the bias's is its own.
  """
  upstream = _upstream(out, residual, d_out, d_residual)
  inputs = (operands, upstream)
  structure = jax.tree.structure(inputs)

  def run(*flat: jax.Array) -> tuple[jax.Array, ...]:
    return implementations.run_gradients(
      request, GradientCall(*jax.tree.unflatten(structure, flat))
    )

  found = batched(run, *jax.tree.leaves(inputs))
  if operands.bias is None:
    return tuple(found)
  return (*found, _bias_gradient(request, inputs))


def _bias_gradient(
  request: AttentionRequest, inputs: tuple[AttentionOperands, Upstream]
) -> jax.Array:
  """The bias's gradient, summed over what it was broadcast along inside the kernel.

  The batch is [groups, members]: a group's members share a bias. An axis that
  vmap maps becomes more groups.
  """
  operands, _ = inputs
  assert operands.bias is not None
  groups = operands.bias.shape[0]
  structure = jax.tree.structure(inputs)

  def run(*flat: jax.Array) -> jax.Array:
    groups = common_batch(*(x.shape[0] for x in flat))
    members = common_batch(*(x.shape[1] for x in flat))

    def merged(x: jax.Array) -> jax.Array:
      rest = x.shape[2:]
      if x.shape[:2] == (1, 1):
        return x.reshape(1, *rest)
      return jnp.broadcast_to(x, (groups, members, *rest)).reshape(groups * members, *rest)

    operands, upstream = jax.tree.unflatten(structure, tuple(map(merged, flat)))
    call = GradientCall(operands, upstream, bias_groups=groups)
    return implementations.run_gradients(request, call)[0]

  split = [x[None] if groups == 1 else x[:, None] for x in jax.tree.leaves(inputs)]
  out: jax.Array = batched(run, *split)
  return out


def _gradients_forward(
  request: AttentionRequest, operands: AttentionOperands, *rest: jax.Array
) -> tuple[tuple[jax.Array, ...], tuple[Any, ...]]:
  return gradients(request, operands, *rest), (operands, rest)


def _gradients_backward(
  request: AttentionRequest,
  kept: tuple[AttentionOperands, tuple[jax.Array, ...]],
  above: tuple[jax.Array, ...],
) -> tuple[Any, ...]:
  """Gradients of gradients: those of the plain JAX ones, with a score matrix in memory."""
  operands, rest = kept
  varied = {
    name: getattr(operands, name) for name in _DIFFERENTIATED if getattr(operands, name) is not None
  }

  def plain(varied: dict[str, jax.Array], rest: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    full = operands._replace(**varied)
    upstream = _upstream(*rest)
    found = xla.gradients(request.rule, full, upstream)
    if full.bias is None:
      return found
    groups = full.bias.shape[0]
    return (*found, xla.bias_gradient(request.rule, full, upstream, groups=groups))

  _, pull = jax.vjp(plain, varied, rest)
  d_varied, d_rest = pull(above)
  filled = AttentionOperands(**{**dict.fromkeys(AttentionOperands._fields), **d_varied})
  return (filled, *d_rest)


gradients.defvjp(_gradients_forward, _gradients_backward)
