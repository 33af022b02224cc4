"""What the route changes in Triton IR, and what it refuses; runs without the compilers."""

import re

import numpy as np
import pytest

from hw_profiles.ascend import UnsupportedIrError
from hw_profiles.ascend.accumulators import check_folded, unfolded_accumulators
from hw_profiles.ascend.externs import known_symbols, rewrite_externs

_TENSOR = "tensor<64x64xf32>"


def _extern(symbol: str, kind: str = _TENSOR) -> str:
  return (
    f'%1 = tt.extern_elementwise %0 {{libname = "", libpath = "", pure = true,'
    f' symbol = "{symbol}"}} : ({kind}) -> {kind}'
  )


def _assembly(text: str, operands: str, types: str) -> str:
  return (
    f'  %7 = tt.elementwise_inline_asm "{text}" {{constraints = "=f,f", packed_element = 1 : i32,'
    f" pure = true}} {operands} : {types} -> {_TENSOR}"
  )


def _dot(accumulator: str, use: str) -> str:
  return f"""\
tt.func public @k() {{
  %zero = arith.constant dense<0.000000e+00> : {_TENSOR}
  %acc = test.accumulator
  %d = tt.dot %a, %b, {accumulator}, inputPrecision = tf32 : tensor<64x16xbf16> * x -> {_TENSOR}
  {use}
}}
"""


@pytest.mark.parametrize("symbol", known_symbols())
@pytest.mark.parametrize("kind", [_TENSOR, "f32"])
def test_known_functions_become_operations(symbol, kind):
  rewritten = rewrite_externs(_extern(symbol, kind))
  assert re.fullmatch(rf"%1 = math\.\w+ %0 : {re.escape(kind)}", rewritten)


@pytest.mark.parametrize("symbol", ["__nv_cbrtf", "__nv_exp", "expf", "__nv_"])
def test_unknown_functions_are_refused(symbol):
  with pytest.raises(UnsupportedIrError, match=symbol):
    rewrite_externs(_extern(symbol))


def test_functions_of_several_operands_are_refused():
  two = _extern("__nv_expf").replace(f"({_TENSOR})", f"({_TENSOR}, tensor<64x64xi32>)")
  with pytest.raises(UnsupportedIrError, match="expected operands of the result's type"):
    rewrite_externs(two)


def test_calls_in_another_form_are_refused():
  with pytest.raises(UnsupportedIrError, match="unknown form"):
    rewrite_externs('"tt.extern_elementwise"(%0) : (f32) -> f32')


def test_exact_quotient():
  text = _assembly("div.rn.f32 $0, $1, $2;", "%0, %1", f"{_TENSOR}, {_TENSOR}")
  assert rewrite_externs(text) == f"  %7 = arith.divf %0, %1 : {_TENSOR}"


def test_rounding_to_even_is_what_the_lines_compute():
  lines = rewrite_externs(_assembly("cvt.rni.f32.f32 $0, $1;", "%0", _TENSOR)).splitlines()
  random = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
  ties = np.arange(-300, 300, dtype=np.float32) / 2
  large = np.array([2.0**22 + 0.5, 2.0**23 - 0.5, 2.0**23, 2.0**24 + 2, np.inf], np.float32)
  x = np.concatenate([random * 100, ties, large, -large, np.array([np.nan], np.float32)])
  values = {"%0": x}
  for line in lines:
    name, operation, arguments = re.fullmatch(r"  (%\w+) = ([\w.]+) (.*) : .*", line).groups()
    names = [
      part.strip() for part in arguments.removeprefix("olt,").removeprefix("oge,").split(",")
    ]
    if operation == "arith.constant":
      values[name] = np.float32(re.fullmatch(r"dense<(.*)>", arguments)[1])
      continue
    operands = [values[one] for one in names]
    values[name] = {
      "arith.cmpf": np.less if "olt" in arguments else np.greater_equal,
      "arith.select": np.where,
      "arith.addf": np.add,
      "arith.subf": np.subtract,
      "math.absf": np.abs,
    }[operation](*operands)
  assert values["%7"].dtype == np.float32
  np.testing.assert_array_equal(values["%7"], np.rint(x))


def test_unknown_assembly_is_refused():
  with pytest.raises(UnsupportedIrError, match=r"ex2\.approx"):
    rewrite_externs(_assembly("ex2.approx.f32 $0, $1;", "%0", _TENSOR))


@pytest.mark.parametrize("use", ["%s = arith.addf %acc, %d : x", "%s = arith.addf %d, %acc : x"])
def test_accumulator_added_afterwards_is_refused(use):
  with pytest.raises(UnsupportedIrError, match="did not fold"):
    check_folded(_dot("%zero", use))


@pytest.mark.parametrize(
  ("accumulator", "use"),
  [
    ("%acc", "%s = arith.addf %d, %bias : x"),
    ("%zero", "%s = arith.mulf %d, %scale : x"),
    # what else uses the product has to see it without the accumulator
    ("%zero", "%s = arith.addf %d, %acc : x\n  %u = arith.subf %d, %acc : x"),
  ],
)
def test_other_uses_of_products_are_left_alone(accumulator, use):
  assert unfolded_accumulators(_dot(accumulator, use)) == ()


def test_products_in_another_form_are_refused():
  text = "%d = tt.dot_scaled %a\n%s = arith.addf %acc, %d : x\n"
  with pytest.raises(UnsupportedIrError, match="product in an unknown form"):
    check_folded(text)
