"""The row-wise ops and the transpose as calls of rowwise/portable_*."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hw_profiles import RowConfig
from pallas_kernels import arguments
from pallas_kernels.lowering.calls import KernelCall, check_config, options_of, sizes_of
from pallas_kernels.rowwise import portable_elements, portable_rows, portable_transpose
from pallas_kernels.rowwise.request import code_dtype
from pallas_kernels.rowwise.specs import RmsNorm, RowCodes, RowSpec, Swiglu
from pallas_kernels.rowwise.transposing import Transpose

_BLOCKS = ("block_rows", "block_cols")


def _matrix(
  op: str, sizes: Mapping[str, int], dtype: jnp.dtype, config: Any
) -> jax.ShapeDtypeStruct:
  rows, columns = sizes_of(op, sizes, ("rows", "columns"))
  check_config(op, config, RowConfig, _BLOCKS)
  return jax.ShapeDtypeStruct((1, rows, columns), dtype)


def swiglu(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> KernelCall:
  """Options: `intermediate_dtype`, `out_dtype`."""
  chosen = options_of("swiglu", options, {"intermediate_dtype": None, "out_dtype": dtype})
  x = _matrix("swiglu", sizes, dtype, config)
  out = arguments.float_dtype("out_dtype", chosen["out_dtype"])
  mid = chosen["intermediate_dtype"]
  spec = Swiglu(out if mid is None else arguments.float_dtype("intermediate_dtype", mid), out)

  def function(gate: jax.Array, up: jax.Array) -> Any:
    return portable_elements.run(spec, (gate, up), (), config=config, interpret=False)

  problem = spec.problem(rows=x.shape[1], columns=x.shape[2], dtype=dtype.name)
  return KernelCall("swiglu", problem, config, function, (x, x))


def _rows(
  op: str,
  spec: RowSpec,
  matrices: tuple[jax.ShapeDtypeStruct, ...],
  weights: tuple[jax.ShapeDtypeStruct, ...],
  config: Any,
) -> KernelCall:
  _, rows, columns = matrices[0].shape
  problem = spec.problem(rows=rows, columns=columns, dtype=matrices[0].dtype.name)

  def function(*arrays: jax.Array) -> Any:
    return portable_rows.run(
      spec,
      arrays[: len(matrices)],
      arrays[len(matrices) :],
      config=config,
      problem=problem,
      interpret=False,
    )

  return KernelCall(op, problem, config, function, (*matrices, *weights))


def swiglu_quantize(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> KernelCall:
  """Codes and scale of each row; option: `code_dtype`."""
  chosen = options_of("swiglu_quantize", options, {"code_dtype": jnp.int8})
  x = _matrix("swiglu_quantize", sizes, dtype, config)
  spec = RowCodes(code_dtype("code_dtype", chosen["code_dtype"]), swiglu=True)
  return _rows("swiglu_quantize", spec, (x, x), (), config)


def quantize_rows(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> KernelCall:
  """Option: `code_dtype`."""
  chosen = options_of("quantize_rows", options, {"code_dtype": jnp.int8})
  x = _matrix("quantize_rows", sizes, dtype, config)
  spec = RowCodes(code_dtype("code_dtype", chosen["code_dtype"]))
  return _rows("quantize_rows", spec, (x,), (), config)


def rms_norm(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> KernelCall:
  """Options: `eps`, `weight_offset`, `out_dtype`."""
  chosen = options_of("rms_norm", options, {"eps": 1e-6, "weight_offset": 0.0, "out_dtype": dtype})
  x = _matrix("rms_norm", sizes, dtype, config)
  spec = RmsNorm(
    eps=chosen["eps"],
    weight_offset=chosen["weight_offset"],
    normalised_dtype=None,
    weight_dtype=dtype,
    out_dtype=arguments.float_dtype("out_dtype", chosen["out_dtype"]),
    sum_dtype=None,
    num_splits=config.num_splits,
  )
  weight = jax.ShapeDtypeStruct((1, 1, x.shape[2]), dtype)
  return _rows("rms_norm", spec, (x,), (weight,), config)


def transpose(
  sizes: Mapping[str, int], dtype: jnp.dtype, config: Any, options: Mapping[str, Any]
) -> KernelCall:
  """No options."""
  options_of("transpose", options, {})
  x = _matrix("transpose", sizes, dtype, config)
  spec = Transpose(dtype)

  def function(x: jax.Array) -> Any:
    moved = portable_transpose.run(spec.forth(x), config=config, interpret=False)
    return spec.back(moved)

  problem = spec.problem(rows=x.shape[1], columns=x.shape[2], batch=1)
  return KernelCall("transpose", problem, config, function, (x,))
