"""Triton IR of a Pallas kernel without a GPU: the one place that uses JAX's private parts.

Pallas puts its Triton module, as MLIR bytecode, into the attribute of a custom
call. Later versions of JAX compile it at once, which needs a CUDA plugin.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

SUPPORTED_JAX = ("0.10.2",)
_CUSTOM_CALL = "__gpu$xla.gpu.triton"


@dataclasses.dataclass(frozen=True)
class TritonKernel:
  """One kernel, as Pallas lowers it for an NVIDIA GPU of compute capability 9.0.

  Attributes:
    name: Name of the kernel's function.
    ir: The module, as text.
    grid: Programs along x, y and z.
    num_warps: Warps of a thread block; not read on Ascend.
    num_stages: Stages that Triton is asked for; not read on Ascend.
  """

  name: str
  ir: str
  grid: tuple[int, int, int]
  num_warps: int
  num_stages: int


def check_jax() -> None:
  """Raises NotImplementedError where this JAX has no route to Triton IR."""
  if jax.__version__ not in SUPPORTED_JAX:
    raise NotImplementedError(
      f"Triton IR without a GPU: needs jax {' or '.join(SUPPORTED_JAX)}, whose private parts it"
      f" uses; this is jax {jax.__version__}"
    )


def _operations(operation: Any) -> Iterator[Any]:
  for region in operation.regions:
    for block in region:
      for inner in block:
        yield inner.operation
        yield from _operations(inner.operation)


def _text(bytecode: bytes) -> str:
  from jax._src.interpreters import mlir
  from jaxlib.mlir import ir
  from jaxlib.triton import dialect

  with mlir.make_ir_context() as context:
    dialect.register_dialect(context)
    return str(ir.Module.parse(bytecode).operation.get_asm())


def triton_kernels(function: Callable[..., Any], *arguments: Any) -> tuple[TritonKernel, ...]:
  """The Triton kernels that `function` calls, in order.

  Args:
    function: Calls `pl.pallas_call` with Triton's compiler parameters, or none.
    *arguments: Arrays, or their `jax.ShapeDtypeStruct`s.

  Raises:
    NotImplementedError: another JAX version than those in `SUPPORTED_JAX`.
    ValueError: Pallas cannot lower the kernel (it says why).
  """
  check_jax()
  from jaxlib.mlir import ir

  lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
  kernels = []
  for operation in _operations(lowered.compiler_ir("stablehlo").operation):
    if operation.name != "stablehlo.custom_call":
      continue
    if ir.StringAttr(operation.attributes["call_target_name"]).value != _CUSTOM_CALL:
      continue
    attributes: Any = ir.DictAttr(operation.attributes["mhlo.backend_config"])
    config = {entry.name: entry.attr for entry in attributes}

    def number(name: str, config: dict[str, Any] = config) -> int:
      return ir.IntegerAttr(config[name]).value

    kernels.append(
      TritonKernel(
        name=ir.StringAttr(config["name"]).value,
        ir=_text(ir.StringAttr(config["ir"]).value_bytes),
        grid=(number("grid_x"), number("grid_y"), number("grid_z")),
        num_warps=number("num_warps"),
        num_stages=number("num_stages"),
      )
    )
  return tuple(kernels)
