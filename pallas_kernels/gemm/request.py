"""The checked, hashable description of one matmul call: all of it but the arrays."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels import activations, arguments
from pallas_kernels.batching import common_batch
from pallas_kernels.gemm.epilogue import Epilogue, make_epilogue


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
    self,
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    bias_shape: tuple[int, ...] | None,
  ) -> MatmulProblem:
    """The planner's view of this request on operands of the kernels' shapes."""
    return MatmulProblem(
      m=a_shape[1],
      k=a_shape[2],
      n=b_shape[2],
      dtype=self.dtype.name,
      out_dtype=self.epilogue.out_dtype.name,
      bias=bias_shape is not None,
      activation=self.epilogue.activation,
      batch=common_batch(a_shape[0], b_shape[0], 1 if bias_shape is None else bias_shape[0]),
      shared_a=a_shape[0] == 1 and b_shape[0] != 1,
      shared_b=b_shape[0] == 1,
    )

  def without_activation(self, out_dtype: Any) -> "MatmulRequest":
    """The same product and bias, stored in `out_dtype` before any activation."""
    plain = make_epilogue(activation=None, intermediate_dtype=None, out_dtype=out_dtype)
    config = self.config
    if config is not None and plain.out_dtype.itemsize != self.epilogue.out_dtype.itemsize:
      # the width of the staging rows was chosen for the size of another dtype
      config = dataclasses.replace(config, epilogue_block_n=None)
    return dataclasses.replace(self, epilogue=plain, config=config)


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
  _check_operands(a, b)
  if bias is not None:
    _check_bias(bias, columns=b.shape[-1])
  arguments.check_choice("activation", activation, activations.ACTIVATIONS)
  arguments.check_implementation(implementation)
  if not isinstance(batch_invariant, bool):
    raise ValueError(f"batch_invariant={batch_invariant!r}: expected True or False")
  if config is not None and not isinstance(config, MatmulConfig):
    raise ValueError(
      f"config is a {type(config).__name__}: expected a MatmulConfig, for example "
      "MatmulConfig(128, 128, 64, num_stages=4)"
    )
  dtype = jnp.dtype(a.dtype)
  return MatmulRequest(
    dtype=dtype,
    epilogue=make_epilogue(
      activation=activation,
      intermediate_dtype=None
      if intermediate_dtype is None
      else arguments.float_dtype("intermediate_dtype", intermediate_dtype),
      out_dtype=dtype if out_dtype is None else arguments.float_dtype("out_dtype", out_dtype),
    ),
    precision=arguments.precision(precision, dtype),
    batch_invariant=batch_invariant,
    config=config,
    implementation=implementation,
  )


def _check_operands(a: Any, b: Any) -> None:
  arguments.check_array("a", a, min_ndim=2)
  arguments.check_array("b", b, min_ndim=2)
  arguments.check_float("a", a)
  arguments.check_float("b", b)
  if a.dtype != b.dtype:
    raise ValueError(
      f"a is {a.dtype} and b is {b.dtype}: expected one dtype; "
      f"a.astype({b.dtype}) or b.astype({a.dtype}) says which"
    )
  for name, array in (("a", a), ("b", b)):
    if not all(isinstance(size, int) for size in array.shape):
      raise ValueError(f"{name} has shape {tuple(array.shape)}: sizes must be known when traced")
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


def _check_bias(bias: Any, *, columns: int) -> None:
  arguments.check_array("bias", bias, min_ndim=1)
  if tuple(bias.shape) != (columns,):
    raise ValueError(
      f"bias has shape {tuple(bias.shape)}: expected ({columns},), one value for each column of b"
    )
  arguments.check_float("bias", bias)


def describe(a: Any, b: Any, bias: Any, request: MatmulRequest) -> str:
  """The call in one line, for `explain`."""
  parts = [arguments.describe_array(a), arguments.describe_array(b)]
  if bias is not None:
    parts.append(f"bias={arguments.describe_array(bias)}")
  if request.epilogue.activation is not None:
    parts.append(f"activation={request.epilogue.activation!r}")
  parts.append(f"out={request.epilogue.out_dtype.name}")
  return ", ".join(parts)


Operands = tuple[jax.Array, jax.Array, jax.Array | None]
