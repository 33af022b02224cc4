"""The example that puts flash_attention in the place of jax.nn.dot_product_attention."""

import importlib.util
import math
import pathlib
import sys

import jax
import numpy as np
import pytest

PATH = pathlib.Path(__file__).parents[2] / "examples" / "train_attention.py"


@pytest.fixture(scope="module")
def example():
  spec = importlib.util.spec_from_file_location("train_attention", PATH)
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module
  spec.loader.exec_module(module)
  return module


def test_the_first_step_has_the_loss_and_gradients_of_jax_nn(example):
  params = example.initial_params(jax.random.key(1))
  tokens = jax.random.randint(jax.random.key(2), (example.BATCH, example.LENGTH), 0, example.TOKENS)
  ours, theirs = (
    jax.jit(jax.value_and_grad(lambda p, n=name: example.loss(p, tokens, attention=n)))(params)
    for name in ("pallas", "jax")
  )
  for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    # both are float32 programs whose longest chain of sums is below 1000 terms: units of 2^-24
    # of the largest number
    largest = float(np.max(np.abs(other)))
    assert float(np.max(np.abs(np.asarray(one) - np.asarray(other)))) <= 1000 * 2.0**-24 * largest


def test_training_learns_to_repeat_the_token_before(example, capsys):
  example.main(["--steps=120"])
  last = float(capsys.readouterr().out.split("last loss ")[1].split(",")[0])
  # chance is log 16; half of that is out of reach of any guess that does not look back
  assert last < math.log(example.TOKENS) / 2
