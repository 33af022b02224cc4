"""Kinds of operand data, on each of which another error of a kernel shows."""

import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  import numpy as np

  from pallas_kernels.benchmark.ops.op import Operands

NORMAL = "normal"
_SEED = 20261
# Powers of two either way. Products of two such elements of bfloat16 or float32 span 2^32; in
# float16 no more than leaves the sum of 4096 of them below its largest number.
_WIDE_EXPONENT = 8
_WIDE_EXPONENT_FLOAT16 = 2
# Integers up to this: sums of 2^20 products of two of them are exact in float32.
_LARGEST_INTEGER = 4


def _positive(x: "np.ndarray", rng: "np.random.Generator") -> "np.ndarray":
  import numpy as np

  del rng
  return np.abs(x)


def _wide(x: "np.ndarray", rng: "np.random.Generator") -> "np.ndarray":
  import numpy as np

  most = _WIDE_EXPONENT_FLOAT16 if x.dtype == np.float16 else _WIDE_EXPONENT
  powers = rng.integers(-most, most, size=x.shape, endpoint=True)
  return np.ldexp(x.astype(np.float32), powers)


def _integers(x: "np.ndarray", rng: "np.random.Generator") -> "np.ndarray":
  import numpy as np

  del rng
  values = x.astype(np.float32)
  spread = float(np.std(values)) or 1.0
  return np.clip(np.rint(values * (2 / spread)), -_LARGEST_INTEGER, _LARGEST_INTEGER)


_MAKERS: Mapping[str, Callable[["np.ndarray", "np.random.Generator"], "np.ndarray"]] = (
  types.MappingProxyType({"positive": _positive, "wide": _wide, "integers": _integers})
)
# What `--data` calls them, and what each is.
KINDS: Mapping[str, str] = types.MappingProxyType(
  {
    NORMAL: "standard normal",
    "positive": "magnitudes: nothing cancels, and the roundings of a sum add up",
    "wide": f"each element times its own power of two, 2^-{_WIDE_EXPONENT} to"
    f" 2^{_WIDE_EXPONENT} (float16: 2^-{_WIDE_EXPONENT_FLOAT16} to 2^{_WIDE_EXPONENT_FLOAT16}):"
    " terms of a sum differ in size, and small ones are lost",
    "integers": f"whole numbers to {_LARGEST_INTEGER}: a float32 sum of their products is exact,"
    " whatever its order",
  }
)


def kinds_of(dtype: str) -> tuple[str, ...]:
  """Those that operands of `dtype` can have: codes of 8 bits have no room for "wide"."""
  from pallas_kernels.benchmark.ops.op import numpy_dtype

  narrow = numpy_dtype(dtype).itemsize == 1
  return tuple(kind for kind in KINDS if not (narrow and kind == "wide"))


def shaped(operands: "Operands", dtype: str, kind: str) -> "Operands":
  """Operands of one kind from standard normal ones; the same on every run.

  Those of another dtype than `dtype`, scales, lengths and masks, stay as they are.

  Args:
    operands: As an op draws them.
    dtype: The problem's.
    kind: One of `KINDS`.
  """
  if kind == NORMAL:
    return operands
  import numpy as np

  from pallas_kernels.benchmark.ops.op import numpy_dtype

  element = numpy_dtype(dtype)
  seeds = np.random.SeedSequence(_SEED).spawn(len(operands))

  def changed(x: "np.ndarray", seed: np.random.SeedSequence) -> "np.ndarray":
    return _MAKERS[kind](np.asarray(x), np.random.default_rng(seed)).astype(element)

  return tuple(
    x if x is None or x.dtype != element else changed(x, seed)
    for x, seed in zip(operands, seeds, strict=True)
  )
