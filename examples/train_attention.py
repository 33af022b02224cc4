"""A training step with `jax.nn.dot_product_attention`, or with `flash_attention` in its place.

    python examples/train_attention.py                      flash_attention
    python examples/train_attention.py --attention=jax      jax.nn.dot_product_attention

One layer of causal attention, 4 query heads on 2 key heads, learns to repeat
the token before: y_t = x_{t-1}. What changes from one to the other is one line
of `ATTENTION`; shapes [batch, length, heads, head size], the masks, the grouping
of heads and the gradients are the same. Runs on a CPU in seconds, and on a GPU.
"""

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import flash_attention

ATTENTION: dict[str, Callable[..., jax.Array]] = {
  # top_left: query i at key i, which is all that jax.nn's is_causal knows
  "pallas": functools.partial(flash_attention, is_causal=True, causal_alignment="top_left"),
  "jax": functools.partial(jax.nn.dot_product_attention, is_causal=True),
}

TOKENS, LENGTH, BATCH = 16, 32, 8
HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 16
WIDTH = HEADS * HEAD_DIM

Params = dict[str, jax.Array]


def initial_params(key: jax.Array) -> Params:
  """Weights of one layer, float32, each of variance 1 / inputs."""
  shapes = {
    "embed": (TOKENS, WIDTH),
    "position": (LENGTH, WIDTH),
    "query": (WIDTH, HEADS, HEAD_DIM),
    "key": (WIDTH, KEY_HEADS, HEAD_DIM),
    "value": (WIDTH, KEY_HEADS, HEAD_DIM),
    "out": (HEADS, HEAD_DIM, WIDTH),
    "unembed": (WIDTH, TOKENS),
  }
  keys = jax.random.split(key, len(shapes))
  return {
    name: jax.random.normal(k, shape) * WIDTH**-0.5
    for k, (name, shape) in zip(keys, shapes.items(), strict=True)
  }


def loss(params: Params, tokens: jax.Array, *, attention: str) -> jax.Array:
  """Mean cross entropy of predicting each token's predecessor, from the second one on."""
  x = params["embed"][tokens] + params["position"]
  q, k, v = (jnp.einsum("btw,wnh->btnh", x, params[name]) for name in ("query", "key", "value"))
  mixed = ATTENTION[attention](q, k, v)
  x = x + jnp.einsum("btnh,nhw->btw", mixed, params["out"])
  log_p = jax.nn.log_softmax(x @ params["unembed"])
  picked = jnp.take_along_axis(log_p[:, 1:], tokens[:, :-1, None], axis=-1)
  return -jnp.mean(picked)


@functools.partial(jax.jit, static_argnames="attention")
def step(
  params: Params, moments: Any, tokens: jax.Array, count: jax.Array, *, attention: str
) -> tuple[Params, Any, jax.Array]:
  """One step of Adam (Kingma and Ba 2014), learning rate 0.01."""
  value, gradient = jax.value_and_grad(functools.partial(loss, attention=attention))(params, tokens)
  first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
  second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g * g, moments[1], gradient)
  rate = 0.01 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
  params = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), params, first, second)
  return params, (first, second), value


def train(attention: str, *, steps: int, seed: int = 0) -> list[float]:
  """The loss before each of `steps` steps, on new random tokens every time."""
  key = jax.random.key(seed)
  params = initial_params(jax.random.fold_in(key, 0))
  zeros = jax.tree.map(jnp.zeros_like, params)
  moments, losses = (zeros, zeros), []
  for index in range(1, steps + 1):
    tokens = jax.random.randint(jax.random.fold_in(key, index), (BATCH, LENGTH), 0, TOKENS)
    params, moments, value = step(params, moments, tokens, jnp.float32(index), attention=attention)
    losses.append(float(value))
  return losses


def main(arguments: Sequence[str] | None = None) -> None:
  """Trains and prints the loss."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--attention", choices=sorted(ATTENTION), default="pallas")
  parser.add_argument("--steps", type=int, default=200)
  options = parser.parse_args(arguments)
  if options.steps < 1:
    parser.error(f"--steps={options.steps}: expected at least 1")
  losses = train(options.attention, steps=options.steps)
  for index in range(0, options.steps, max(options.steps // 10, 1)):
    print(f"step {index:4d}  loss {losses[index]:.4f}")
  print(f"last loss {losses[-1]:.4f}, of {jnp.log(TOKENS):.4f} without training")


if __name__ == "__main__":
  main()
