"""flash_attention beside the unfused program of the same precision: `attention_unfused`'s rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import IMPLEMENTATIONS, Case, accumulates, split
from attention_unfused import attention, floor, needed_floors

import reference
from pallas_kernels import compat

TO_THE_END = {"is_causal": True, "causal_alignment": "bottom_right"}
KINDS = {
  "plain": ((2, 50, 70, 4, 2, 64, 64), {}),
  "causal": ((1, 100, 100, 2, 1, 128, 128), {"options": {"is_causal": True}}),
  "window, cap": (
    (1, 66, 66, 3, 1, 72, 40),
    {"options": {"local_window_size": (20, 5), "logits_soft_cap": 3.0}},
  ),
  "bias, mask": ((2, 40, 40, 2, 2, 80, 80), {"bias": (1, 2, 40, 40), "mask": (2, 1, 40, 40)}),
  "packed": ((2, 50, 70, 2, 1, 32, 192), {"lengths": ((50, 40), (70, 31)), "segments": 3}),
  "many keys": ((1, 16, 1000, 1, 1, 64, 64), {}),
}
CASES = [
  Case(name, sizes, dtype, **more)
  for name, (sizes, more) in KINDS.items()
  for dtype in ("float32", "bfloat16", "float16")
  if dtype != "float16" or name in ("window, cap", "packed")
]
# of operands that the Hopper kernels take, one tile each: their interpreter is slow
FOR_HOPPER = [
  Case("causal", (1, 64, 64, 1, 1, 32, 32), "bfloat16", options=TO_THE_END),
  Case("window, cap", (1, 60, 64, 1, 1, 40, 24), "float16", options={"logits_soft_cap": 2.0}),
]


def assert_rule(case: Case, implementation: str) -> None:
  needed = needed_floors(case, implementation)
  assert all(x <= floor(name, case.dtype, implementation) for name, x in needed.items()), needed


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_errors_are_at_most_twice_those_of_the_unfused_program(name, case):
  assert_rule(case, name)


@pytest.mark.skipif(not compat.CARRIES_ARRAYS, reason="refused on this JAX version")
@pytest.mark.skipif(jax.default_backend() == "gpu", reason="compiled on this machine")
@pytest.mark.parametrize("case", FOR_HOPPER, ids=str)
def test_those_of_the_interpreted_hopper_kernels_are(case):
  assert_rule(case, "mosaic_gpu_interpret")


@pytest.mark.gpu
@pytest.mark.parametrize(
  "case", [case for case in CASES if case.dtype != "float32" and case.bias is None], ids=str
)
def test_those_of_the_hopper_kernels_are(case):
  assert_rule(case, "mosaic_gpu")


def test_the_unfused_program_is_jax_nns(rng):
  # so that the rule compares with what people use
  case = Case("same", (2, 33, 33, 4, 2, 24, 24), options={"is_causal": True})
  arrays = case.arrays(rng)
  visible = np.tril(np.ones((33, 33), bool))[None, None]
  with jax.default_matmul_precision("highest"):
    theirs = jax.nn.dot_product_attention(*arrays.values(), is_causal=True, implementation="xla")
  positional, options = split(case, arrays)
  for found in (attention(case, jnp.asarray(visible), **arrays), theirs):
    reference.assert_flash_attention_close(
      np.asarray(found), *positional, accumulate=accumulates("xla", case.dtype), **options
    )
