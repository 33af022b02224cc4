"""Every op on every kind of device at sizes that come apart: it runs, or says why not."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import hw_profiles
import pallas_kernels as pk
from pallas_kernels import device, dispatch

GPUS = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", "no such GPU")
# one that no block divides, none, and more than int32 has
SIZES = (9, 0, 2**31)


def array(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def numbers(*shape: int) -> jax.ShapeDtypeStruct:
  return array(*shape, dtype="float32")


def codes(*shape: int) -> jax.ShapeDtypeStruct:
  return array(*shape, dtype="float8_e4m3fn")


def lengths(*shape: int) -> jax.ShapeDtypeStruct:
  return array(*shape, dtype="int32")


# op -> (operands of three sizes, options, whether it has gradients)
CALLS: dict[str, tuple[Callable[..., tuple[Any, ...]], dict[str, Any], bool]] = {
  "matmul": (lambda m, k, n: (array(m, k), array(k, n)), {}, True),
  "gated_matmul": (lambda m, k, n: (array(m, k), array(k, n), array(k, n)), {}, True),
  "quantized_matmul": (
    lambda m, k, n: (codes(m, k), codes(k, n), numbers(m, 1), numbers(n)),
    {"out_dtype": jnp.bfloat16},
    False,
  ),
  "quantize_matmul": (
    lambda m, k, n: (array(m, k), codes(k, n), numbers(n)),
    {"out_dtype": jnp.bfloat16},
    False,
  ),
  "swiglu": (lambda b, m, n: (array(b, m, n), array(b, m, n)), {}, True),
  "swiglu_quantize": (lambda b, m, n: (array(b, m, n), array(b, m, n)), {}, False),
  "quantize_rows": (lambda b, m, n: (array(b, m, n),), {}, False),
  "rms_norm": (lambda b, m, n: (array(b, m, n), array(n)), {}, True),
  "transpose": (lambda b, m, n: (array(b, m, n),), {}, True),
  "flash_attention": (
    lambda b, t, s: (array(b, t, 2, 64), array(b, s, 1, 64), array(b, s, 1, 64)),
    {"is_causal": True, "causal_alignment": "bottom_right"},
    True,
  ),
  "decode_attention": (
    lambda b, pages, size: (
      array(b, 2, 64),
      array(9, size, 1, 64),
      array(9, size, 1, 64),
      lengths(b),
      lengths(b, pages),
    ),
    {},
    False,
  ),
}


def function_of(op: str) -> Callable[..., Any]:
  if op != "decode_attention":
    return getattr(pk, op)
  return lambda *operands: pk.decode_attention(*operands[:-1], page_table=operands[-1])


def explained(op: str, operands: tuple[Any, ...], **options: Any) -> Any:
  if op == "decode_attention":
    *operands, options["page_table"] = operands
  return pk.explain(getattr(pk, op), *operands, **options)


def refusal_of(call: Callable[[], Any]) -> Exception | None:
  """What a call raises of what is documented; anything else is the test's error."""
  try:
    call()
  except (NotImplementedError, hw_profiles.InfeasibleTileError) as error:
    return error
  return None


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("kind", GPUS)
def test_every_size_is_explained_or_refused_with_the_reasons(kind, op):
  make, options, _ = CALLS[op]
  with device.abstract_gpu(device_kind=kind, num_cores=132):
    for sizes in itertools.product(SIZES, repeat=3):
      error = refusal_of(lambda sizes=sizes: explained(op, make(*sizes), **options))
      if error is not None:
        assert f"kernels count to {dispatch.LARGEST_SIZE}" in str(error)
        # XLA's masks have positions in int32, too
        assert op in ("flash_attention", "decode_attention")


@pytest.mark.parametrize("op", CALLS)
def test_what_is_explained_is_traced_with_its_gradients(op):
  make, options, has_gradients = CALLS[op]
  function = function_of(op)

  def call(*operands: Any) -> Any:
    return function(*operands, **options)

  def gradients(*operands: Any) -> Any:
    out, pull = jax.vjp(call, *operands)
    return pull(out)

  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    for sizes in itertools.product(SIZES, repeat=3):
      operands = make(*sizes)
      refused = refusal_of(lambda operands=operands: explained(op, operands, **options))
      raised = refusal_of(
        lambda operands=operands: jax.eval_shape(gradients if has_gradients else call, *operands)
      )
      assert (refused is None) == (raised is None), (sizes, refused, raised)
