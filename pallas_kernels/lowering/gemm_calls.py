"""matmul and gated_matmul as calls of gemm/portable."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import MatmulConfig
from pallas_kernels import activations, arguments
from pallas_kernels.gemm import portable
from pallas_kernels.gemm.epilogue import Epilogue, GatedEpilogue, make_epilogue
from pallas_kernels.gemm.operands import Operands, Transposes
from pallas_kernels.gemm.request import GemmRequest
from pallas_kernels.lowering.calls import KernelCall, check_config, options_of, sizes_of

_BLOCKS = ("block_m", "block_n", "block_k")


def _call(
  op: str, operands: Operands, dtype: jnp.dtype, config: MatmulConfig, epilogue: Epilogue
) -> KernelCall:
  request = GemmRequest(
    op=op,
    dtype=dtype,
    epilogue=epilogue,
    precision=arguments.precision(None, dtype),
    batch_invariant=False,
    config=config,
    implementation=None,
  )
  structure = jax.tree.structure(operands)

  def function(*arrays: jax.Array) -> jax.Array:
    return portable.matmul(
      jax.tree.unflatten(structure, arrays),
      transposes=Transposes(),
      config=config,
      epilogue=epilogue,
      precision=request.precision,
      interpret=False,
    )

  return KernelCall(
    op=op,
    problem=request.problem(operands),
    config=config,
    function=function,
    arguments=tuple(jax.tree.leaves(operands)),
  )


def _operands(
  sizes: Mapping[str, int], dtype: jnp.dtype, op: str, *, products: int, bias: bool
) -> Operands:
  m, k, n = sizes_of(op, sizes, ("m", "k", "n"))
  array = functools.partial(jax.ShapeDtypeStruct, dtype=dtype)
  return Operands(
    array((1, m, k)),
    tuple(array((1, k, n)) for _ in range(products)),
    per_column=(array((1, n)),) if bias else (),
  )


def matmul(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> KernelCall:
  """Options: `bias` (True or False), `activation`, `intermediate_dtype`, `out_dtype`."""
  chosen = options_of(
    "matmul",
    options,
    {"bias": False, "activation": None, "intermediate_dtype": None, "out_dtype": dtype},
  )
  check_config("matmul", config, MatmulConfig, _BLOCKS)
  arguments.check_choice("activation", chosen["activation"], activations.ACTIVATIONS)
  epilogue = make_epilogue(
    activation=chosen["activation"],
    intermediate_dtype=chosen["intermediate_dtype"],
    out_dtype=arguments.float_dtype("out_dtype", chosen["out_dtype"]),
  )
  operands = _operands(sizes, dtype, "matmul", products=1, bias=chosen["bias"])
  return _call("matmul", operands, dtype, config, epilogue)


def gated_matmul(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> KernelCall:
  """Options: `activation`, `intermediate_dtype`, `out_dtype`."""
  chosen = options_of(
    "gated_matmul",
    options,
    {"activation": "silu", "intermediate_dtype": None, "out_dtype": dtype},
  )
  check_config("gated_matmul", config, MatmulConfig, _BLOCKS)
  arguments.check_choice("activation", chosen["activation"], activations.ACTIVATIONS)
  out = arguments.float_dtype("out_dtype", chosen["out_dtype"])
  mid = chosen["intermediate_dtype"]
  epilogue = GatedEpilogue(
    activation=chosen["activation"],
    intermediate_dtype=out if mid is None else arguments.float_dtype("intermediate_dtype", mid),
    out_dtype=out,
  )
  operands = _operands(sizes, dtype, "gated_matmul", products=2, bias=False)
  return _call("gated_matmul", operands, dtype, config, epilogue)
