"""The checked, hashable description of one matmul call: all of it but the arrays."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels import activations, arguments
from pallas_kernels.gemm.epilogue import Epilogue, make_epilogue
from pallas_kernels.gemm.operands import Operands, Transposes

# What multiplies codes, where they are given to what does not.
_CODES = (
  "quantized_matmul multiplies codes and applies their scales, quantize_matmul takes them as b_q"
)


@dataclasses.dataclass(frozen=True)
class GemmRequest:
  """Options of a call after checking, sizes left out (`vmap` changes them).

  Attributes:
    op: The public function, for messages.
    dtype: Operand dtype.
    epilogue: What happens to the accumulators.
    precision: For float32 operands; `Precision.HIGHEST` unless the user asked
      for less.
    batch_invariant: Whether a row's bits may not depend on M.
    config: The user's config or None.
    implementation: The user's choice or None.
    transposes: How the operands are stored.
    code_dtype: What the rows of A are quantised to on the way; None: not at all.
    pairs: Pairs (A, B) whose products are added up; see `Operands.added`.
  """

  op: str
  dtype: jnp.dtype
  epilogue: Epilogue
  precision: Any
  batch_invariant: bool
  config: MatmulConfig | None
  implementation: str | None
  transposes: Transposes = dataclasses.field(default_factory=Transposes)
  code_dtype: jnp.dtype | None = None
  pairs: int = 1

  def problem(self, operands: Operands) -> MatmulProblem:
    """The planner's view of this request on operands, or on their shapes.

    A_0·B_0 + A_1·B_1 is [A_0 | A_1]·[B_0; B_1], the product of As side by side and
    Bs on top of one another, twice as deep: as many steps of as many bytes.
    """
    sizes = operands.sizes(self.transposes)
    a_batch, b_batch = operands.a.shape[0], operands.bs[0].shape[0]
    return MatmulProblem(
      m=sizes.m,
      k=self.pairs * sizes.k,
      n=sizes.n,
      dtype=self.dtype.name,
      out_dtype=self.epilogue.out_dtype.name,
      bias=bool(operands.per_column) and self.code_dtype is None and not operands.per_row,
      scaled=bool(operands.per_row) or self.code_dtype is not None,
      activation=self.epilogue.activation,
      batch=sizes.batch,
      shared_a=a_batch == 1 and b_batch != 1,
      shared_b=b_batch == 1,
      products=len(operands.bs),
    )

  def with_epilogue(self, epilogue: Epilogue) -> "GemmRequest":
    """The same products, finished in another way."""
    config = self.config
    if config is not None and epilogue.out_dtype.itemsize != self.epilogue.out_dtype.itemsize:
      # the width of the staging rows was chosen for the size of another dtype
      config = dataclasses.replace(config, epilogue_block_n=None)
    return dataclasses.replace(self, epilogue=epilogue, config=config)

  def plain(self, out_dtype: Any) -> "GemmRequest":
    """The same product and bias, stored in `out_dtype` before any activation."""
    return self.with_epilogue(
      make_epilogue(activation=None, intermediate_dtype=None, out_dtype=out_dtype)
    )

  def for_gradient(
    self, out_dtype: Any, transposes: Transposes, *, pairs: int = 1
  ) -> "GemmRequest":
    """A plain product of other operands, or a sum of them, with the options that hold for it."""
    return dataclasses.replace(
      self.plain(out_dtype), op="matmul", config=None, transposes=transposes, pairs=pairs
    )


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
) -> GemmRequest:
  """Check the arguments of `matmul` and gather what does not depend on sizes.

  Raises:
    ValueError: an argument is wrong; the message names it, the value got, what
      was expected and what would work.
  """
  check_matrices(("a", a), ("b", b))
  if bias is not None:
    _check_bias(bias, columns=b.shape[-1])
  arguments.check_choice("activation", activation, activations.ACTIVATIONS)
  check_options(config, batch_invariant=batch_invariant, implementation=implementation)
  dtype = jnp.dtype(a.dtype)
  return GemmRequest(
    op="matmul",
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


def check_options(config: Any, *, batch_invariant: Any = False, implementation: Any = None) -> None:
  """Check the options that the family's functions share; raises ValueError."""
  arguments.check_implementation(implementation)
  if not isinstance(batch_invariant, bool):
    raise ValueError(f"batch_invariant={batch_invariant!r}: expected True or False")
  if config is not None and not isinstance(config, MatmulConfig):
    raise ValueError(
      f"config is a {type(config).__name__}: expected a MatmulConfig, for example "
      "MatmulConfig(128, 128, 64, num_stages=4)"
    )


def check_float(name: str, array: Any) -> None:
  """`arguments.check_float`, which names what takes codes where they are given."""
  arguments.check_float(name, array, codes=_CODES)


def check_matrices(
  left: tuple[str, Any],
  right: tuple[str, Any],
  *,
  check_dtype: Callable[[str, Any], None] = check_float,
) -> None:
  """Check two named operands of a product against each other; raises ValueError."""
  (a_name, a), (b_name, b) = left, right
  for name, array in (left, right):
    arguments.check_array(name, array, min_ndim=2)
  for name, array in (left, right):
    check_dtype(name, array)
  if a.dtype != b.dtype:
    raise ValueError(
      f"{a_name} is {a.dtype} and {b_name} is {b.dtype}: expected one dtype; "
      f"{a_name}.astype({b.dtype}) or {b_name}.astype({a.dtype}) says which"
    )
  check_product_shapes(left, right)


def check_product_shapes(left: tuple[str, Any], right: tuple[str, Any]) -> None:
  """Check that the shapes of two named operands make a product; raises ValueError."""
  (a_name, a), (b_name, b) = left, right
  for name, array in (left, right):
    if not all(isinstance(size, int) for size in array.shape):
      raise ValueError(f"{name} has shape {tuple(array.shape)}: sizes must be known when traced")
  if a.shape[-1] != b.shape[-2]:
    raise ValueError(
      f"{a_name} has shape {tuple(a.shape)} and {b_name} {tuple(b.shape)}: the last dimension of"
      f" {a_name} ({a.shape[-1]}) must equal the second to last of {b_name} ({b.shape[-2]})"
      + (f"; {b_name}.swapaxes(-1, -2) would fit" if a.shape[-1] == b.shape[-1] else "")
    )
  try:
    jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
  except ValueError:
    raise ValueError(
      f"{a_name} has batch dimensions {tuple(a.shape[:-2])} and {b_name} {tuple(b.shape[:-2])}: "
      f"expected shapes that broadcast against each other, or a 2-d {b_name}"
    ) from None


def _check_bias(bias: Any, *, columns: int) -> None:
  arguments.check_array("bias", bias, min_ndim=1)
  if tuple(bias.shape) != (columns,):
    raise ValueError(
      f"bias has shape {tuple(bias.shape)}: expected ({columns},), one value for each column of b"
    )
  arguments.check_float("bias", bias)


def describe(a: Any, b: Any, bias: Any, request: GemmRequest) -> str:
  """The call in one line, for `explain`."""
  parts = [arguments.describe_array(a), arguments.describe_array(b)]
  if bias is not None:
    parts.append(f"bias={arguments.describe_array(bias)}")
  if request.epilogue.activation is not None:
    parts.append(f"activation={request.epilogue.activation!r}")
  parts.append(f"out={request.epilogue.out_dtype.name}")
  return ", ".join(parts)
