"""Running a kernel and holding its result against the float64 reference."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
import numpy.typing as npt

import hw_profiles
import pallas_kernels
import reference
from hw_profiles import MatmulConfig
from pallas_kernels.benchmark.flags import Options
from pallas_kernels.benchmark.operands import Operands, numpy_dtype
from pallas_kernels.benchmark.parsing import Shape

Function = Callable[..., jax.Array]


@dataclasses.dataclass(frozen=True)
class Choice:
  """What would run, or why nothing would.

  Attributes:
    implementation: The name; None where it is refused.
    config: The tile that runs; None where the implementation takes none.
    reason: Why it is refused.
    notes: What else happens, for example a padding copy.
  """

  implementation: str | None
  config: MatmulConfig | None
  reason: str | None
  notes: tuple[str, ...] = ()


def platform() -> str:
  """Where JAX runs here: "cpu" or "gpu"."""
  return str(jax.devices()[0].platform)


def device_profile() -> str | None:
  """Name of the hardware profile of the device that JAX uses; None where there is none."""
  found = hw_profiles.profile_for_device_kind(jax.devices()[0].device_kind)
  return None if found is None else found.name


def default_implementation() -> str | None:
  """None, that is dispatch's choice, on a GPU; "interpret" elsewhere.

  Left to itself dispatch takes XLA where no kernel compiles, which would check
  XLA and not the kernel.
  """
  return None if platform() == "gpu" else "interpret"


def function(options: Options, config: MatmulConfig | None, implementation: str | None) -> Function:
  """f(a, b, bias) for the operation that the flags describe."""
  call = functools.partial(
    pallas_kernels.matmul,
    activation=options.activation,
    intermediate_dtype=_dtype(options.intermediate_dtype),
    out_dtype=_dtype(options.out_dtype),
    batch_invariant=options.batch_invariant,
    config=config,
    implementation=implementation,
  )

  def matmul(a: jax.Array, b: jax.Array, bias: jax.Array | None) -> jax.Array:
    return call(a, b, bias=bias)

  return matmul


def choose(
  options: Options,
  shape: Shape,
  dtype: str,
  config: MatmulConfig | None,
  implementation: str | None,
) -> Choice:
  """Which implementation and tile would run, without running it."""
  a, b, bias = _abstract(options, shape, dtype)
  try:
    explanation = pallas_kernels.explain(
      pallas_kernels.matmul,
      a,
      b,
      bias=bias,
      activation=options.activation,
      intermediate_dtype=_dtype(options.intermediate_dtype),
      out_dtype=_dtype(options.out_dtype),
      batch_invariant=options.batch_invariant,
      config=config,
      implementation=implementation,
    )
  except (ValueError, NotImplementedError) as error:
    return Choice(implementation=None, config=None, reason=str(error))
  return Choice(
    implementation=explanation.implementation,
    config=explanation.config,
    reason=None,
    notes=explanation.notes,
  )


def result(call: Function, operands: Operands) -> npt.NDArray[np.generic]:
  """The result on the host."""
  return np.asarray(jax.block_until_ready(jax.jit(call)(operands.a, operands.b, operands.bias)))


def check(
  options: Options,
  actual: npt.NDArray[np.generic],
  operands: Operands,
  *,
  chunk: int | None,
  tensor_cores: bool,
) -> reference.MatmulCheck:
  """Compares with float64, within the bound that the order of accumulation allows.

  Args:
    options: Say what was computed.
    actual: The result.
    operands: Of this result.
    chunk: Products summed on their own before they join the rest; None: any order.
    tensor_cores: Whether a GPU's tensor cores accumulated.
  """
  return reference.check_matmul(
    actual,
    operands.a,
    operands.b,
    bias=operands.bias,
    activation=options.activation,
    intermediate_dtype=_dtype(options.intermediate_dtype),
    out_dtype=numpy_dtype(options.out_dtype or operands.a.dtype.name),
    accumulation_chunk=chunk,
    accumulate="tensor_core" if tensor_cores else "ieee",
  )


def _dtype(name: str | None) -> np.dtype[np.generic] | None:
  return None if name is None else numpy_dtype(name)


def _abstract(
  options: Options, shape: Shape, dtype: str
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct | None]:
  leading = () if shape.batch is None else (shape.batch,)
  element = numpy_dtype(dtype)
  return (
    jax.ShapeDtypeStruct((*leading, shape.m, shape.k), element),
    jax.ShapeDtypeStruct((*leading, shape.k, shape.n), element),
    jax.ShapeDtypeStruct((shape.n,), element) if options.bias else None,
  )
