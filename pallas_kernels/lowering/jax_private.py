"""What a Pallas call becomes without a GPU: the one place that uses JAX's private parts.

Pallas puts the module of a kernel, as MLIR bytecode, into the attribute of a
custom call. For Triton later versions of JAX compile it at once, which needs a
CUDA plugin; for Mosaic GPU all versions that are supported leave it there.
"""

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from hw_profiles.frozen_map import FrozenMap

SUPPORTED_JAX = ("0.10.2",)
"""Versions whose Triton modules can be had."""

SUPPORTED_MOSAIC_JAX = ("0.10", "0.11", "0.12")
"""Series of versions whose Mosaic GPU modules can be had."""

_TRITON_CALL = "__gpu$xla.gpu.triton"
_MOSAIC_CALL = "mosaic_gpu_v2"
_PATCHING = threading.Lock()


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


@dataclasses.dataclass(frozen=True)
class MosaicModule:
  """One Mosaic GPU kernel, lowered as far as JAX goes without a GPU.

  What is left, in the CUDA plugin, is LLVM's code generator and ptxas: registers
  and spills are known after these only.

  Attributes:
    name: Name of the kernel.
    stages: The module as text: "mosaic_gpu" as Pallas writes it, "layouts" with a
      layout for every array, where they were asked for; "lowered" to NVVM and
      inline PTX.
    operations: How often each operation stands in the lowered module.
    assembly: The text of each piece of inline PTX in it.
    shared_bytes: Dynamic shared memory of a thread block.
    grid: Thread blocks.
    block: Threads of a thread block.
    cluster: Thread blocks of a cluster.
  """

  name: str
  stages: FrozenMap[str, str] = dataclasses.field(repr=False)
  operations: FrozenMap[str, int] = dataclasses.field(repr=False)
  assembly: tuple[str, ...] = dataclasses.field(repr=False)
  shared_bytes: int
  grid: tuple[int, int, int]
  block: tuple[int, int, int]
  cluster: tuple[int, int, int]


class OtherJaxNeededError(NotImplementedError):
  """What is asked for can be had, but not with the version of JAX that is installed."""


def check_jax() -> None:
  """Raises OtherJaxNeededError where this JAX has no route to Triton IR."""
  if jax.__version__ not in SUPPORTED_JAX:
    raise OtherJaxNeededError(
      f"Triton IR without a GPU: needs jax {' or '.join(SUPPORTED_JAX)}, whose private parts it"
      f" uses; this is jax {jax.__version__} (pip install jax=={SUPPORTED_JAX[-1]} installs it)"
    )


def check_mosaic_jax() -> None:
  """Raises OtherJaxNeededError where the Mosaic GPU module of this JAX is not known."""
  if not jax.__version__.startswith(tuple(f"{series}." for series in SUPPORTED_MOSAIC_JAX)):
    raise OtherJaxNeededError(
      f"Mosaic GPU IR without a GPU: needs jax {' or '.join(SUPPORTED_MOSAIC_JAX)}, whose private"
      f" parts it uses; this is jax {jax.__version__}"
    )


def _operations(operation: Any) -> Iterator[Any]:
  for region in operation.regions:
    for block in region:
      for inner in block:
        yield inner.operation
        yield from _operations(inner.operation)


def _kernel_calls(
  function: Callable[..., Any], arguments: tuple[Any, ...], target: str
) -> Iterator[dict[str, Any]]:
  """The attributes of each custom call of `target` that `function` lowers to for CUDA."""
  from jaxlib.mlir import ir

  lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
  for operation in _operations(lowered.compiler_ir("stablehlo").operation):
    if operation.name != "stablehlo.custom_call":
      continue
    if ir.StringAttr(operation.attributes["call_target_name"]).value != target:
      continue
    attributes: Any = ir.DictAttr(operation.attributes["mhlo.backend_config"])
    yield {entry.name: entry.attr for entry in attributes}


def _triton_text(bytecode: bytes) -> str:
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

  kernels = []
  for config in _kernel_calls(function, arguments, _TRITON_CALL):

    def number(name: str, config: dict[str, Any] = config) -> int:
      return ir.IntegerAttr(config[name]).value

    kernels.append(
      TritonKernel(
        name=ir.StringAttr(config["name"]).value,
        ir=_triton_text(ir.StringAttr(config["ir"]).value_bytes),
        grid=(number("grid_x"), number("grid_y"), number("grid_z")),
        num_warps=number("num_warps"),
        num_stages=number("num_stages"),
      )
    )
  return tuple(kernels)


@contextlib.contextmanager
def _recording_layouts(found: list[dict[str, str]]) -> Iterator[None]:
  """Puts the module before and after layout inference into `found`, one entry a kernel."""
  from jax.experimental.mosaic import gpu
  from jax.experimental.mosaic.gpu import layout_inference

  # jax 0.10 calls it by the package's name for it
  caller: Any = layout_inference if jax.__version_info__ >= (0, 11) else gpu
  infer = caller.infer_layout

  def recording(module: Any, *arguments: Any, **options: Any) -> None:
    before = str(module)
    infer(module, *arguments, **options)
    found.append({"mosaic_gpu": before, "layouts": str(module)})

  with _PATCHING:
    caller.infer_layout = recording
    try:
      yield
    finally:
      caller.infer_layout = infer


def _constant(value: Any) -> int:
  from jaxlib.mlir import ir

  return ir.IntegerAttr(value.owner.attributes["value"]).value


# The first operands of gpu.launch after what it waits for, and how many there are.
_GRID_AND_BLOCK = 6
_CLUSTER = 3


def _launch(operation: Any) -> dict[str, Any]:
  """Grid, block, cluster and shared memory of a gpu.launch."""
  from jaxlib.mlir import ir

  segments: Any = ir.DenseI32ArrayAttr(operation.attributes["operandSegmentSizes"])
  sizes = list(segments)
  operands = list(operation.operands)
  start = sizes[0]
  numbers = [_constant(value) for value in operands[start : start + _GRID_AND_BLOCK]]
  # asynchronous dependencies, grid and block, cluster x, y, z, then shared memory
  shared = start + _GRID_AND_BLOCK + sum(sizes[7:10])
  clustered = operands[start + _GRID_AND_BLOCK : shared]
  return {
    "grid": tuple(numbers[:3]),
    "block": tuple(numbers[3:]),
    "cluster": tuple(map(_constant, clustered)) if len(clustered) == _CLUSTER else (1, 1, 1),
    "shared_bytes": _constant(operands[shared]),
  }


def _mosaic_module(bytecode: bytes, stages: Mapping[str, str]) -> MosaicModule:
  from jax._src.interpreters import mlir
  from jaxlib.mlir import ir, passmanager
  from jaxlib.mosaic.python import mosaic_gpu as dialect

  with mlir.make_ir_context() as context:
    dialect.register_dialect(context)
    # the form that is kept stable between versions, which the next pass reads
    context.allow_unregistered_dialects = True
    module = ir.Module.parse(bytecode)
    serde = "builtin.module(mosaic_gpu-serde{serialize=false})"
    passmanager.PassManager.parse(serde).run(module.operation)
    found = list(_operations(module.operation))
    (launch,) = (operation for operation in found if operation.name == "gpu.launch")
    name = next(
      ir.StringAttr(operation.attributes["sym_name"]).value
      for operation in found
      if operation.name == "func.func" and operation.regions[0].blocks
    )
    return MosaicModule(
      name=name,
      stages=FrozenMap({**stages, "lowered": str(module.operation.get_asm())}),
      operations=FrozenMap(collections.Counter(operation.name for operation in found)),
      assembly=tuple(
        ir.StringAttr(operation.attributes["asm_string"]).value
        for operation in found
        if operation.name == "llvm.inline_asm"
      ),
      **_launch(launch),
    )


def mosaic_modules(
  function: Callable[..., Any], *arguments: Any, keep_stages: bool = False
) -> tuple[MosaicModule, ...]:
  """The Mosaic GPU kernels that `function` calls, in order.

  Args:
    function: Calls kernels of `jax.experimental.pallas.mosaic_gpu`; traced as for
      the device of `pallas_kernels.device.abstract_gpu` where that is set.
    *arguments: Arrays, or their `jax.ShapeDtypeStruct`s.
    keep_stages: Keep the text of the stages before the last, too.

  Raises:
    NotImplementedError: a JAX version of none of the series in
      `SUPPORTED_MOSAIC_JAX`.
    ValueError: the kernel cannot be lowered (Mosaic GPU says why).
  """
  check_mosaic_jax()
  from jaxlib.mlir import ir

  earlier: list[dict[str, str]] = []
  with _recording_layouts(earlier) if keep_stages else contextlib.nullcontext():
    calls = list(_kernel_calls(function, arguments, _MOSAIC_CALL))
  if not keep_stages:
    earlier = [{} for _ in calls]
  return tuple(
    _mosaic_module(ir.StringAttr(call["module"]).value_bytes, stages)
    for call, stages in zip(calls, earlier, strict=True)
  )
