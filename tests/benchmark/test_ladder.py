"""The optimisation ladder: every step is a matmul, lowers for CUDA and has a predicted time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hw_profiles
import reference
from pallas_kernels import device
from pallas_kernels.benchmark.ladder import cuda_cores
from pallas_kernels.benchmark.ladder.steps import steps

H200 = hw_profiles.get_profile("h200_sxm")
FFN = hw_profiles.MatmulProblem(1024, 4096, 12288)


@pytest.mark.parametrize(
  ("kernel", "options"),
  [(cuda_cores.one_output_a_thread, {"columns": 32}), (cuda_cores.register_tiles, {"side": 16})],
)
def test_the_lowest_steps_are_matmuls(kernel, options, rng):
  a, b = reference.exact_integer_operands(rng, 32, 24, 64, "bfloat16")
  out = kernel(jnp.asarray(a), jnp.asarray(b), interpret=True, **options)
  np.testing.assert_array_equal(
    np.asarray(out, np.float64), reference.matmul(a, b).astype(np.float64)
  )


@pytest.mark.parametrize("step", steps(), ids=lambda step: step.name)
def test_every_step_lowers_for_cuda_and_has_a_prediction(step):
  a, b = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((256, 256), (256, 512)))
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    text = jax.jit(step.run).trace(a, b).lower(lowering_platforms=("cuda",)).as_text()
  assert "custom_call" in text
  predicted_us, bound = step.predict(FFN, H200)
  assert predicted_us > 0
  assert bound


def test_the_model_orders_the_kinds_of_steps_as_they_were_built_up():
  # the stages within one kind are close; the kinds are not
  naive, registers, tensor, *_, final = (step.predict(FFN, H200)[0] for step in steps())
  assert naive > registers > tensor > final
