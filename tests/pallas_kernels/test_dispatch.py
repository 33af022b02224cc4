"""Which implementation is chosen for which device and call, and how that is explained."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

import hw_profiles
import reference
from pallas_kernels import (
  AttentionConfig,
  MatmulConfig,
  RowConfig,
  activations,
  compat,
  device,
  dispatch,
  explain,
  flash_attention,
  gated_matmul,
  matmul,
  names,
  planning,
  quantize_matmul,
  quantized_matmul,
  rms_norm,
  swiglu,
)
from pallas_kernels.gemm import implementations
from pallas_kernels.gemm.operands import Operands, Transposes
from pallas_kernels.gemm.request import make_request


def struct(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


A, B = struct(1024, 4096), struct(4096, 12288)


def on(kind: str, cores: int = 132):
  return device.abstract_gpu(device_kind=kind, num_cores=cores)


def test_hopper_gets_the_hopper_kernel():
  with on("NVIDIA H200"):
    explanation = explain(matmul, A, B)
  assert explanation.implementation == "mosaic_gpu"
  assert isinstance(explanation.config, MatmulConfig)
  assert explanation.plan.fits
  assert explanation.plan.profile == "h200_sxm"
  assert explanation.plan.schedule == "warp_specialized"
  assert set(explanation.refused) == {"triton", "xla", "interpret", "mosaic_gpu_interpret"}


def test_a_gpu_without_a_profile_gets_a_safe_tile_and_no_time():
  with on("NVIDIA GeForce RTX 3090", 128):
    explanation = explain(matmul, A, B)
  assert explanation.implementation == "triton"
  assert explanation.plan is None
  assert any("no profile of 'NVIDIA GeForce RTX 3090'" in note for note in explanation.notes)
  # what the smallest of the known GPUs holds: 99 KiB
  config = explanation.config
  stage = 2 * config.block_k * (config.block_m + config.block_n)
  assert config.num_stages * stage <= 99 * 1024


def test_an_interpreter_has_no_predicted_time():
  explanation = explain(matmul, A, B, config=MatmulConfig(24, 24, 24), implementation="interpret")
  assert explanation.plan is None
  assert "predicted" not in str(explanation)


def test_explain_says_that_a_tile_of_the_interpreter_fits_no_gpu():
  calls = (
    (matmul, (A, B), MatmulConfig(4096, 4096, 4096, 8)),
    (rms_norm, (struct(64, 64), struct(64)), RowConfig(4096, 4096, 8)),
    (flash_attention, (struct(1, 64, 2, 64),) * 3, AttentionConfig(4096, 4096, 8)),
  )
  for function, operands, config in calls:
    said = explain(function, *operands, config=config, implementation="interpret")
    assert said.implementation == "interpret"
    assert any(
      note.startswith("the interpreter runs this tile, which does not fit h100_sxm: ")
      for note in said.notes
    )
  fitting = explain(matmul, A, B, config=MatmulConfig(64, 64, 32), implementation="interpret")
  planned = explain(matmul, A, B, implementation="interpret")
  assert not any("does not fit" in note for note in (*fitting.notes, *planned.notes))


def test_explain_agrees_with_the_call_on_empty_sums():
  with pytest.raises(NotImplementedError, match=r"NVIDIA GPUs only|TF32"):
    matmul(jnp.zeros((2, 0)), jnp.zeros((0, 3)), implementation="mosaic_gpu")
  with pytest.raises(NotImplementedError, match=r"NVIDIA GPUs only|TF32"):
    explain(matmul, jnp.zeros((2, 0)), jnp.zeros((0, 3)), implementation="mosaic_gpu")


def test_another_nvidia_gpu_gets_the_portable_kernel():
  with on("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188):
    explanation = explain(matmul, A, B)
  assert explanation.implementation == "triton"
  assert "Hopper" in explanation.refused["mosaic_gpu"]


def test_a_cpu_gets_xla_and_says_why_not_the_kernels():
  explanation = explain(matmul, A, B)
  if jax.default_backend() == "cpu":
    assert explanation.implementation == "xla"
    assert "NVIDIA GPUs only" in explanation.refused["mosaic_gpu"]
    assert "asked for by name" in explanation.refused["interpret"]


def test_float32_is_refused_by_wgmma():
  with on("NVIDIA H200"):
    explanation = explain(matmul, struct(64, 64, dtype="float32"), struct(64, 64, dtype="float32"))
  assert explanation.implementation != "mosaic_gpu"
  assert "TF32" in explanation.refused["mosaic_gpu"]


def test_a_config_only_the_portable_kernel_can_run_goes_there():
  config = MatmulConfig(32, 32, 32, 2)
  with on("NVIDIA H200"):
    explanation = explain(matmul, A, B, config=config)
  assert explanation.implementation == "triton"
  assert "block_m=32" in explanation.refused["mosaic_gpu"]
  assert explanation.config == config


def test_a_batch_invariant_config_does_not_depend_on_m():
  with on("NVIDIA H200"):
    configs = {
      explain(matmul, struct(m, 4096), B, batch_invariant=True).config for m in (1, 7, 256, 7239)
    }
  assert len(configs) == 1


def test_a_tile_tuned_for_other_rows_says_whose_time_it_tells():
  with on("NVIDIA H200"):
    few, same = (
      explain(matmul, struct(m, 4096), B, batch_invariant=True).notes[0] for m in (7, 1024)
    )
  assert re.match(r"tuned: measured [\d.]+ us at m=1024, not m=7 on NVIDIA H200", few)
  assert re.match(r"tuned: measured [\d.]+ us on NVIDIA H200", same)


def gradients_of(function, *operands, **options):
  """What `explain` says of them, on an H200."""
  with on("NVIDIA H200"):
    notes = explain(function, *operands, **options).notes
  return [note for note in notes if "gradient" in note]


def test_gradients_of_products_say_who_runs_each():
  of_a, of_b = gradients_of(matmul, A, B)
  assert of_a.startswith("the gradient of a runs: mosaic_gpu with block_m=")
  assert of_b.startswith("the gradient of b runs: mosaic_gpu with block_m=")
  # an odd number of rows has the same kernel; float32, not that of 16 bits
  odd, width = struct(7239, 4096), struct(4096, 12288)
  assert gradients_of(matmul, odd, width)[1].startswith("the gradient of b runs: mosaic_gpu with")
  of_x, of_weights = gradients_of(gated_matmul, odd, width, width)
  assert of_x.startswith("the gradient of x runs: mosaic_gpu with")
  assert of_weights.startswith("the gradients of w_gate and w_up run: mosaic_gpu with")
  wide = [struct(*shape, dtype="float32") for shape in ((1024, 4096), (4096, 12288))]
  assert gradients_of(matmul, *wide) == [f"the gradient of {x} runs: xla" for x in "ab"]


def test_gradients_that_nothing_runs_say_what_is_in_the_way():
  # a has 2^41 elements, more than kernels have results of
  a, b = struct(2**20, 2**21), struct(2**21, 8)
  of_a, of_b = gradients_of(matmul, a, b, implementation="mosaic_gpu")
  assert of_a.startswith("the gradient of a raises NotImplementedError: ")
  assert f"m={2**20} x n={2**21}: the blocks of more than" in of_a
  assert of_b.startswith("the gradient of b runs: mosaic_gpu with")


def test_codes_and_empty_products_have_no_note_of_gradients():
  codes = struct(64, 64, dtype="int8")
  scales = struct(64, 1, dtype="float32"), struct(64, dtype="float32")
  assert gradients_of(quantized_matmul, codes, codes, *scales, out_dtype="bfloat16") == []
  assert gradients_of(matmul, struct(0, 8), struct(8, 7)) == []


@pytest.mark.parametrize("name", ["triton", "mosaic_gpu"])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_note_on_gradients_names_what_runs_them(name, batch):
  shapes = (struct(batch, 256, 128), struct(128, 192), struct(128, 192))
  lead, weight = shapes[0], shapes[1]
  of_x, of_weights = gradients_of(gated_matmul, *shapes, implementation=name)
  assert f"runs: {name} with" in of_x
  assert f"run: {name} with" in of_weights
  chosen = []
  real = implementations.choice.choose

  def recording(*args, **options):
    chosen.append(real(*args, **options))
    return chosen[-1]

  def loss(x, w_gate, w_up):
    return gated_matmul(x, w_gate, w_up, implementation=name).astype(jnp.float32).sum()

  with on("NVIDIA H200"), pytest.MonkeyPatch.context() as patch:
    patch.setattr(implementations.choice, "choose", recording)
    jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(lead, weight, weight)
  run = {f"{one.implementation.name} with {one.config.describe()}" for one in chosen}
  assert {note.split(": ", 1)[1] for note in (of_x, of_weights)} <= run


def test_what_runs_only_when_asked_for_stands_in_for_nothing():
  def able(name, *, refused=False, **options):
    refusal = dispatch.Refusal("dtype", "too wide") if refused else None
    return dispatch.Implementation(
      name, schedule=None, refusal=lambda: refusal, run=lambda *_: None, **options
    )

  table = able("mosaic_gpu", only_by_name=True), able("triton"), able("interpret")
  decide = functools.partial(dispatch.decide, "op", refusal=lambda one: one.refusal())
  found = decide(table, None)
  assert found.implementation.name == "triton"
  by_name = "runs only when asked for by name"
  assert found.refused["mosaic_gpu"] == found.refused["interpret"] == by_name
  assert decide(table, "mosaic_gpu").implementation.name == "mosaic_gpu"
  listed = r"triton: too wide\. These can if asked for by name .*: mosaic_gpu, interpret"
  with pytest.raises(NotImplementedError, match=listed):
    decide((table[0], able("triton", refused=True), table[2]), None)


def test_what_an_op_has_no_kernel_for_is_named():
  with on("NVIDIA H200"):
    said = explain(swiglu, A, A)
  assert set(said.refused) == set(names.IMPLEMENTATIONS) - {said.implementation}
  assert said.refused["mosaic_gpu"] == "swiglu has no such implementation"


def test_padding_copies_are_reported():
  with on("NVIDIA H200"):
    ragged = explain(matmul, struct(113, 1023), struct(1023, 203), implementation="mosaic_gpu")
    whole = explain(matmul, A, B)
  assert any(note.startswith("b is 1023 x 203") for note in ragged.notes)
  assert not any("copied" in note for note in whole.notes)


def test_small_operands_of_odd_pitches_go_to_the_kernel_that_reads_them_as_they_are():
  with on("NVIDIA H200"):
    odd = explain(matmul, struct(113, 1023), struct(1023, 203))
    untuned = explain(matmul, struct(113, 1021), struct(1021, 205))
  assert odd.implementation == untuned.implementation == "triton"
  # measured 3.9 us against 7.1 us of the Hopper kernel with its copies
  assert odd.config == MatmulConfig(32, 64, 64, num_stages=2, group_m=1, num_warps=8, split_k=8)
  assert "would be copied by way of padded arrays" in odd.refused["mosaic_gpu"]
  assert "triton, which needs no copies" in odd.refused["mosaic_gpu"]


@pytest.mark.parametrize(
  ("m", "k", "n"), [(333, 4096, 12289), (7239, 4095, 4096), (2048, 2047, 2049), (1000, 1001, 999)]
)
def test_large_operands_of_odd_pitches_are_padded_for_the_hopper_kernel(m, k, n):
  with on("NVIDIA H200"):
    assert explain(matmul, struct(m, k), struct(k, n)).implementation == "mosaic_gpu"


def test_pitches_choose_no_implementation_where_they_must_not():
  with on("NVIDIA H200"):
    # whole rows, or an order of sums that must not depend on M
    assert explain(matmul, struct(112, 1024), struct(1024, 208)).implementation == "mosaic_gpu"
    invariant = explain(matmul, struct(113, 1023), struct(1023, 203), batch_invariant=True)
    assert invariant.implementation == "mosaic_gpu"
    config = MatmulConfig(64, 64, 64, num_stages=4)
    tiled = explain(matmul, struct(113, 1023), struct(1023, 203), config=config)
    assert (tiled.implementation, tiled.config) == ("mosaic_gpu", config)
  with on("NVIDIA A100-SXM4-80GB", 108):
    assert explain(matmul, struct(113, 1023), struct(1023, 203)).implementation == "triton"


def weights_gradient(rows):
  """What serves Xᵀ·dY of some rows of X and dY."""
  request = make_request(
    A,
    B,
    bias=None,
    activation=None,
    intermediate_dtype=None,
    out_dtype=None,
    precision=None,
    batch_invariant=False,
    config=None,
    implementation=None,
  ).for_gradient(jnp.dtype("bfloat16"), Transposes(a=True))
  operands = Operands(struct(1, rows, 4096), (struct(1, rows, 12288),))
  with on("NVIDIA H200"):
    return implementations.choose(request, request.problem(operands), device.target_device())


@pytest.mark.skipif(not compat.SWIZZLES_UNTILED, reason="jax 0.10 takes whole tiles")
def test_a_weights_gradient_of_odd_rows_copies_no_operand():
  odd, even = weights_gradient(7239), weights_gradient(7240)
  assert odd.implementation.name == even.implementation.name == "mosaic_gpu"
  assert odd.config == even.config
  assert not any("copied" in note for note in odd.notes)


def test_float8_products_run_where_no_tensor_core_takes_them():
  codes, columns = struct(4096, 12288, dtype="float8_e4m3fn"), struct(12288, dtype="float32")
  rows = struct(1024, 1, dtype="float32")
  a_q = struct(1024, 4096, dtype="float8_e4m3fn")
  calls = (
    (quantized_matmul, (a_q, codes, rows, columns), {}),
    (quantize_matmul, (A, codes, columns), {"fuse": False}),
    (quantize_matmul, (A, codes, columns), {"fuse": True}),
  )
  for function, operands, options in calls:
    with on("NVIDIA A100-SXM4-80GB", 108):
      found = explain(function, *operands, out_dtype="bfloat16", **options)
    assert found.implementation == "xla"
    assert "float8_e4m3fn needs compute capability 8.9" in found.refused["triton"]
    with on("NVIDIA GeForce RTX 4090", 128):
      assert (
        explain(function, *operands, out_dtype="bfloat16", **options).implementation == "triton"
      )


@pytest.mark.parametrize(
  ("m", "k", "n", "named"), [(2**19 + 1, 4096, 64, "a_q"), (64, 4096, 2**19 + 1, "b_q")]
)
def test_codes_whose_offsets_would_wrap_are_left_to_xla(m, k, n, named):
  a, b = struct(m, k, dtype="int8"), struct(k, n, dtype="int8")
  scales = struct(m, 1, dtype="float32"), struct(n, dtype="float32")
  with on("NVIDIA A100-SXM4-80GB", 108):
    found = explain(quantized_matmul, a, b, *scales, out_dtype="bfloat16")
  assert found.implementation == "xla"
  assert f"{named}: {2**31 + 4096} elements of 1 byte" in found.refused["triton"]


def test_codes_within_reach_of_offsets_or_beyond_32_bits_are_not():
  for rows in (2**19, 2**20 + 1):
    a, b = struct(rows, 4096, dtype="int8"), struct(4096, 64, dtype="int8")
    scales = struct(rows, 1, dtype="float32"), struct(64, dtype="float32")
    with on("NVIDIA A100-SXM4-80GB", 108):
      found = explain(quantized_matmul, a, b, *scales, out_dtype="bfloat16")
    assert found.implementation == "triton"


def test_where_no_tile_fits_the_error_says_what_is_in_the_way():
  float8 = hw_profiles.MatmulProblem(64, 64, 64, dtype="float8_e4m3fn", scaled=True)
  with on("NVIDIA A100-SXM4-80GB", 108):
    a100 = device.target_device()
  triton = dispatch.Implementation(
    "triton", schedule="multistage", refusal=lambda *_: None, run=lambda *_: None
  )
  with pytest.raises(hw_profiles.InfeasibleTileError, match=r"a100_sxm4_80gb, .* multiplies"):
    planning.resolve(triton, float8, None, a100)


def test_the_text_names_everything():
  with on("NVIDIA H200"):
    text = str(explain(matmul, A, B, activation="silu", bias=struct(12288)))
  for part in (
    "bfloat16[1024,4096]",
    "activation='silu'",
    "NVIDIA H200",
    "runs: mosaic_gpu",
    "config: block_m=",
    "predicted:",
    "not triton: ",
  ):
    assert part in text


def test_empty_operands_need_no_kernel():
  explanation = explain(matmul, struct(0, 8), struct(8, 7))
  assert explanation.config is None
  assert "nothing to multiply" in explanation.notes[0]


def test_explain_refuses_what_it_does_not_know():
  for function, shown in ((jnp.dot, r"jax\.numpy\.dot"), ("matmul", "'matmul'")):
    with pytest.raises(ValueError, match=rf"function={shown}: expected .*\(.*matmul.*transpose\)"):
      explain(function, A, B)
  with pytest.raises(TypeError, match="activaton"):
    explain(matmul, A, B, activaton="silu")


def test_explain_raises_what_the_call_would():
  with pytest.raises(ValueError, match="must equal"):
    explain(matmul, A, struct(5, 5))
  with pytest.raises(NotImplementedError, match="These can:"):
    explain(matmul, A, B, implementation="xla", batch_invariant=True)


def test_the_packages_know_the_same_activations():
  assert set(activations.ACTIVATIONS) == set(hw_profiles.ACTIVATIONS)
  for name in activations.ACTIVATIONS:
    reference.matmul_exact([[1.0]], [[1.0]], activation=name)
