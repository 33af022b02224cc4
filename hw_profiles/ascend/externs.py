"""The first of two changes that Triton IR needs on its way to Ascend: named functions.

Pallas writes `jnp.exp` as a call of CUDA's libdevice (`__nv_expf`), and a kernel
may ask for an instruction of NVIDIA's by name where the last bit matters
(`div.rn.f32`). Huawei's compiler has neither; it has the operations of MLIR's
`math` and `arith` dialects.
"""

import re

from hw_profiles.ascend.errors import UnsupportedIrError

# Base names of libdevice functions (without "__nv_" and the "f" of float32) that
# both compilers, 910 and 950, take as a math operation: each was compiled.
_MATH_OPERATIONS = {
  "atan": "atan",
  "ceil": "ceil",
  "cos": "cos",
  "exp": "exp",
  "exp2": "exp2",
  "expm1": "expm1",
  "fabs": "absf",
  "floor": "floor",
  "log": "log",
  "log1p": "log1p",
  "rsqrt": "rsqrt",
  "sin": "sin",
  "sqrt": "sqrt",
  "tan": "tan",
  "tanh": "tanh",
}

# Instructions of PTX, by how they are written.
_DIVIDE = "div.rn.f32 $0, $1, $2;"
_ROUND_EVEN = "cvt.rni.f32.f32 $0, $1;"

# Between 2^23 and 2^24 float32 has the integers alone, so that x + 2^23 rounds x to
# one, ties to even; from 2^23 on x is one. (Neither compiler takes math.roundeven.)
_ROUND_EVEN_LINES = """\
%{new}_bound = arith.constant dense<8.388608e+06> : {type}
%{new}_opposite = arith.constant dense<-8.388608e+06> : {type}
%{new}_zero = arith.constant dense<0.000000e+00> : {type}
%{new}_negative = arith.cmpf olt, {x}, %{new}_zero : {type}
%{new}_shift = arith.select %{new}_negative, %{new}_opposite, %{new}_bound : {mask}, {type}
%{new}_shifted = arith.addf {x}, %{new}_shift : {type}
%{new}_rounded = arith.subf %{new}_shifted, %{new}_shift : {type}
%{new}_magnitude = math.absf {x} : {type}
%{new}_whole = arith.cmpf oge, %{new}_magnitude, %{new}_bound : {type}
{name} = arith.select %{new}_whole, {x}, %{new}_rounded : {mask}, {type}"""

_TYPE = r"(?:tensor<[^>]*>|[fi]\d+)"
_CALL = re.compile(
  r"tt\.extern_elementwise (?P<operands>[^{\n]+?) "
  r'\{[^}\n]*symbol = "(?P<symbol>\w+)"[^}\n]*\}'
  rf" : \((?P<types>[^\n]*?)\) -> (?P<result>{_TYPE})"
)
_INSTRUCTION = re.compile(
  r"(?P<indent>[ ]*)(?P<name>%[\w$.-]+) = tt\.elementwise_inline_asm"
  r' "(?P<text>[^"\n]*)" \{[^}\n]*\} (?P<operands>[^:\n]+?)'
  rf" : (?P<types>[^\n]*?) -> (?P<result>{_TYPE})"
)


def known_symbols() -> tuple[str, ...]:
  """The float32 functions that have a rule."""
  return tuple(f"__nv_{name}f" for name in _MATH_OPERATIONS)


def _operation(symbol: str) -> str:
  for name, operation in _MATH_OPERATIONS.items():
    if symbol == f"__nv_{name}f":
      return operation
  raise UnsupportedIrError(
    f"extern function {symbol}: no rule for it; those with one are {', '.join(known_symbols())}"
  )


def _one_type(what: str, types: str, result: str) -> None:
  if any(kind != result for kind in re.findall(_TYPE, types)):
    raise UnsupportedIrError(
      f"{what}: takes {types} and gives {result}; expected operands of the result's type"
    )


def _call(match: re.Match[str]) -> str:
  operation = _operation(match["symbol"])
  _one_type(f"extern function {match['symbol']}", match["types"], match["result"])
  return f"math.{operation} {match['operands']} : {match['result']}"


def _instruction(match: re.Match[str]) -> str:
  text, operands, result = match["text"], match["operands"], match["result"]
  _one_type(f"inline assembly {text!r}", match["types"], result)
  if text == _DIVIDE:
    lines = f"{match['name']} = arith.divf {operands} : {result}"
  elif text == _ROUND_EVEN:
    mask = re.sub(r"f32", "i1", result)
    lines = _ROUND_EVEN_LINES.format(
      name=match["name"], new=f"even{match['name'][1:]}", x=operands, type=result, mask=mask
    )
  else:
    raise UnsupportedIrError(
      f"inline assembly {text!r}: no rule for it; those with one are {_DIVIDE!r} and"
      f" {_ROUND_EVEN!r}"
    )
  return "\n".join(match["indent"] + line for line in lines.splitlines())


def rewrite_externs(triton_ir: str) -> str:
  """The text with every libdevice call and instruction written as an operation of MLIR.

  Raises:
    UnsupportedIrError: one without a rule, or in another form.
  """
  rewritten = _INSTRUCTION.sub(_instruction, _CALL.sub(_call, triton_ir))
  left = re.search(r".*(?:extern_elementwise|inline_asm).*", rewritten)
  if left:
    raise UnsupportedIrError(f"a foreign function in an unknown form: {left[0].strip()}")
  return rewritten
