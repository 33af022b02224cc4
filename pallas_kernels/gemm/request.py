"""The checked, hashable description of one matmul call: all of it but the arrays."""

import dataclasses
import difflib
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels import activations, dispatch
from pallas_kernels.gemm.epilogue import Epilogue, make_epilogue

OPERAND_DTYPES = ("bfloat16", "float16", "float32", "float64")


@dataclasses.dataclass(frozen=True)
class MatmulRequest:
  """Options of a call after checking, sizes left out (`vmap` changes them).

  Attributes:
    dtype: Operand dtype.
    epilogue: Bias, activation and roundings.
    precision: For float32 operands; `Precision.HIGHEST` unless the user asked
      for less.
    batch_invariant: Whether a row's bits may not depend on M.
    config: The user's config or None.
    implementation: The user's choice or None.
  """

  dtype: jnp.dtype
  epilogue: Epilogue
  precision: Any
  batch_invariant: bool
  config: MatmulConfig | None
  implementation: str | None

  def problem(
    self, a_shape: tuple[int, ...], b_shape: tuple[int, ...], *, bias: bool
  ) -> MatmulProblem:
    """The planner's view of this request on operands of the kernel's 3-d shapes."""
    return MatmulProblem(
      m=a_shape[1],
      k=a_shape[2],
      n=b_shape[2],
      dtype=self.dtype.name,
      out_dtype=self.epilogue.out_dtype.name,
      bias=bias,
      activation=self.epilogue.activation,
      batch=max(a_shape[0], b_shape[0]),
      shared_b=b_shape[0] == 1,
    )


def _float_dtype(name: str, value: Any) -> jnp.dtype:
  """`value` as a floating-point dtype the epilogue can round to."""
  try:
    dtype = jnp.dtype(value)
  except TypeError:
    dtype = None
  if dtype is None or dtype.name not in OPERAND_DTYPES:
    shown = value if dtype is None else dtype.name
    raise ValueError(f"{name}={shown!r}: expected one of {', '.join(OPERAND_DTYPES)}")
  return dtype


def _check_array(name: str, array: Any, min_ndim: int) -> None:
  if not (hasattr(array, "shape") and hasattr(array, "dtype")):
    raise ValueError(
      f"{name} is a {type(array).__name__}: expected an array; jnp.asarray({name}) makes one"
    )
  if len(array.shape) < min_ndim:
    raise ValueError(
      f"{name} has shape {tuple(array.shape)}: expected at least {min_ndim} dimension(s)"
      + (f"; {name}[None, :] makes a row" if min_ndim == 2 and len(array.shape) == 1 else "")
    )


def _canonical_precision(precision: Any, dtype: jnp.dtype) -> Any:
  """`precision` as `lax.dot_general` takes it; None is full accuracy, never TF32."""
  if precision is None:
    return lax.Precision.HIGHEST if dtype in (jnp.float32, jnp.float64) else None
  if isinstance(precision, (lax.Precision, lax.DotAlgorithmPreset, lax.DotAlgorithm)):
    return precision
  try:
    return lax.Precision(precision)
  except ValueError:
    pass
  try:
    return lax.DotAlgorithmPreset[str(precision)]
  except KeyError:
    raise ValueError(
      f"precision={precision!r}: expected None, a jax.lax.Precision ('default', 'high', "
      "'highest') or a jax.lax.DotAlgorithmPreset"
    ) from None


def make_request(
  a: Any,
  b: Any,
  *,
  bias: Any,
  activation: str | None,
  intermediate_dtype: Any,
  out_dtype: Any,
  precision: Any,
  batch_invariant: bool,
  config: MatmulConfig | None,
  implementation: str | None,
) -> MatmulRequest:
  """Check the arguments of `matmul` and gather what does not depend on sizes.

  Raises:
    ValueError: an argument is wrong; the message names it, the value got, what
      was expected and what would work.
  """
  _check_array("a", a, 2)
  _check_array("b", b, 2)
  for name, array in (("a", a), ("b", b)):
    if jnp.dtype(array.dtype).name not in OPERAND_DTYPES:
      raise ValueError(
        f"{name} is {jnp.dtype(array.dtype).name}: expected one of {', '.join(OPERAND_DTYPES)}"
      )
  if a.dtype != b.dtype:
    raise ValueError(
      f"a is {a.dtype} and b is {b.dtype}: expected one dtype; "
      f"a.astype({b.dtype}) or b.astype({a.dtype}) says which"
    )
  if a.shape[-1] != b.shape[-2]:
    raise ValueError(
      f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}: the last dimension of a "
      f"({a.shape[-1]}) must equal the second to last of b ({b.shape[-2]})"
      + ("; b.swapaxes(-1, -2) would fit" if a.shape[-1] == b.shape[-1] else "")
    )
  try:
    jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
  except ValueError:
    raise ValueError(
      f"a has batch dimensions {tuple(a.shape[:-2])} and b {tuple(b.shape[:-2])}: "
      "expected shapes that broadcast against each other, or a 2-d b"
    ) from None
  if bias is not None:
    _check_array("bias", bias, 1)
    if tuple(bias.shape) != (b.shape[-1],):
      raise ValueError(
        f"bias has shape {tuple(bias.shape)}: expected ({b.shape[-1]},), one value for each "
        "column of b"
      )
    if jnp.dtype(bias.dtype).name not in OPERAND_DTYPES:
      raise ValueError(
        f"bias is {jnp.dtype(bias.dtype).name}: expected one of {', '.join(OPERAND_DTYPES)}"
      )
  if activation is not None and activation not in activations.ACTIVATIONS:
    close = difflib.get_close_matches(str(activation), activations.ACTIVATIONS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(
      f"activation={activation!r}: expected None or one of "
      f"{', '.join(map(repr, activations.ACTIVATIONS))}{hint}"
    )
  if config is not None and not isinstance(config, MatmulConfig):
    raise ValueError(
      f"config is a {type(config).__name__}: expected a MatmulConfig, for example "
      "MatmulConfig(128, 128, 64, num_stages=4)"
    )
  dispatch.check_name(implementation)
  dtype = jnp.dtype(a.dtype)
  return MatmulRequest(
    dtype=dtype,
    epilogue=make_epilogue(
      activation=activation,
      intermediate_dtype=None
      if intermediate_dtype is None
      else _float_dtype("intermediate_dtype", intermediate_dtype),
      out_dtype=dtype if out_dtype is None else _float_dtype("out_dtype", out_dtype),
    ),
    precision=_canonical_precision(precision, dtype),
    batch_invariant=bool(batch_invariant),
    config=config,
    implementation=implementation,
  )


def describe(a: Any, b: Any, bias: Any, request: MatmulRequest) -> str:
  """The call in one line, for `explain`."""

  def array(x: Any) -> str:
    return f"{jnp.dtype(x.dtype).name}[{','.join(map(str, x.shape))}]"

  parts = [array(a), array(b)]
  if bias is not None:
    parts.append(f"bias={array(bias)}")
  if request.epilogue.activation is not None:
    parts.append(f"activation={request.epilogue.activation!r}")
  parts.append(f"out={request.epilogue.out_dtype.name}")
  return ", ".join(parts)


def is_array(x: Any) -> bool:
  """Whether x is a JAX array (or tracer) rather than only a shape and dtype."""
  return isinstance(x, jax.Array)
