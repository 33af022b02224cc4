"""One tile through the compiler of one vendor: what it accepts and allocates, or why not."""

import dataclasses
import functools
from typing import Any, Literal

import jax

import hw_profiles
from hw_profiles import GpuProfile, InfeasibleTileError, TileShapeError
from hw_profiles.ascend import (
  AscendError,
  AscendPlan,
  CompileOptions,
  CompilerFailedError,
  CompilersNotInstalledError,
  TritonProgram,
  find_compilers,
  get_target,
)
from hw_profiles.ascend.operations import HivmOperations, count_operations
from hw_profiles.capacity.compiled import MOST_COPIES
from hw_profiles.frozen_map import FrozenMap
from pallas_kernels import device
from pallas_kernels.lowering.ascend import with_stages
from pallas_kernels.lowering.jax_private import OtherJaxNeededError
from pallas_kernels.lowering.mosaic import (
  MOSAIC_OPS,
  MosaicSummary,
  mosaic_gpu_ir,
  summarise,
)
from pallas_kernels.lowering.ptxas import PtxasResources, resources
from pallas_kernels.lowering.triton import triton_ir

Outcome = Literal["accepted", "too large", "refused", "failed", "not available"]

_PROGRAMS_KEPT = 4

_TRITON_ON_A_GPU = (
  "what Triton allocates on an NVIDIA GPU is known after compiling there; here only its IR"
)


@dataclasses.dataclass(frozen=True)
class CompileTask:
  """An op, its sizes and a tile, for one device.

  Attributes:
    op: One of `lowering.OPS`.
    shapes: Sizes by name.
    dtype: Of the operands, by name.
    config: The tile.
    profile: A profile's name; of an NVIDIA GPU: compiled by Mosaic GPU, of an
      Ascend: by Huawei's compiler.
    options: The op's own.
    implementation: Of an NVIDIA GPU, "mosaic_gpu" or "triton"; None: the first
      on a Hopper GPU that the op has a kernel for, else the second.
    keep_stages: Keep the text of every stage.
    keep_passes: Keep the module after each pass of Huawei's compiler, too.
    time_limit_s: For each program that is run.
  """

  op: str
  shapes: FrozenMap[str, int]
  dtype: str
  config: Any
  profile: str
  options: FrozenMap[str, Any] = dataclasses.field(default_factory=FrozenMap)
  implementation: str | None = None
  keep_stages: bool = False
  keep_passes: bool = False
  time_limit_s: float = 60.0


@dataclasses.dataclass(frozen=True)
class Compiled:
  """What came of a task.

  Attributes:
    task: The task.
    compiler: What was asked, with its version.
    outcome: "accepted"; "too large" for a memory; "refused": no kernel for this,
      or not with blocks of these shapes;
      "failed": a compiler crashed, took too long or rejected the program;
      "not available": it is not installed here, or not with this JAX.
    reason: Why it was not accepted; empty where it was.
    mosaic: What Mosaic GPU allocates.
    ascend: What Huawei's compiler plans, without the texts; also where it is too
      large, then with the overflow.
    operations: What the planned program does.
    ptxas: Registers and spills; None where no GPU of that kind is here.
    note: What a reader must know of how it was compiled.
    stages: Texts by stage: those asked for; of a failure all up to what failed.
  """

  task: CompileTask
  compiler: str
  outcome: Outcome
  reason: str = ""
  mosaic: MosaicSummary | None = None
  ascend: AscendPlan | None = None
  operations: HivmOperations | None = None
  ptxas: PtxasResources | None = None
  note: str = ""
  stages: FrozenMap[str, str] = dataclasses.field(default_factory=FrozenMap, repr=False)

  @property
  def accepted(self) -> bool:
    """Whether the compiler took the tile."""
    return self.outcome == "accepted"


def compile_task(task: CompileTask) -> Compiled:
  """Runs the compiler; what goes wrong is an outcome, not an exception.

  Raises:
    ValueError: there is no such profile.
  """
  profile = hw_profiles.get_profile(task.profile)
  if isinstance(profile, GpuProfile):
    if nvidia_implementation(task, profile) == "mosaic_gpu":
      return _answered(task, f"Mosaic GPU (jax {jax.__version__})", _mosaic)
    return _answered(task, f"Pallas to Triton IR (jax {jax.__version__})", _triton)
  return _answered(task, get_target(task.profile).compiler, _ascend)


def nvidia_implementation(task: CompileTask, profile: GpuProfile) -> str:
  """What compiles a task for a GPU: "mosaic_gpu" or "triton"."""
  if task.implementation is not None:
    return task.implementation
  hopper = profile.compute_capability == (9, 0)
  return "mosaic_gpu" if hopper and task.op in MOSAIC_OPS else "triton"


def _answered(task: CompileTask, compiler: str, run: Any) -> Compiled:
  def answer(outcome: Outcome, error: Exception, **more: Any) -> Compiled:
    return Compiled(task, compiler, outcome, " ".join(str(error).split()), **more)

  try:
    found: Compiled = run(task, compiler)
  except CompilersNotInstalledError as error:
    return answer("not available", error)
  except CompilerFailedError as error:
    return answer("failed", error, stages=error.stages)
  except AscendError as error:
    return answer("refused", error)
  except OtherJaxNeededError as error:
    return answer("not available", error)
  except (NotImplementedError, TileShapeError) as error:
    return answer("refused", error)
  except InfeasibleTileError as error:
    return answer("too large", error)
  except ValueError as error:
    too_large = "exceeds available shared memory" in str(error)
    return answer("too large" if too_large else "refused", error)
  return found


def _mosaic(task: CompileTask, compiler: str) -> Compiled:
  modules = mosaic_gpu_ir(
    task.op,
    task.shapes,
    task.dtype,
    task.config,
    profile=task.profile,
    keep_stages=task.keep_stages,
    **task.options,
  )
  (module,) = modules  # no op that is lowered here is more
  return Compiled(
    task,
    compiler,
    "accepted",
    mosaic=summarise(module),
    ptxas=resources(task) if _is_here(task.profile) else None,
    stages=module.stages if task.keep_stages else FrozenMap(),
  )


def _is_here(profile: str) -> bool:
  """Whether the device that JAX runs on is of that profile."""
  found = hw_profiles.profile_for_device_kind(device.target_device().kind)
  return found is not None and found.name == profile


def _triton(task: CompileTask, compiler: str) -> Compiled:
  kernels = triton_ir(task.op, task.shapes, task.dtype, task.config, **task.options)
  numbered = {
    "triton" if len(kernels) == 1 else f"triton {number} {kernel.name}": kernel.ir
    for number, kernel in enumerate(kernels, 1)
  }
  return Compiled(
    task,
    compiler,
    "accepted",
    note=_TRITON_ON_A_GPU,
    stages=FrozenMap(numbered if task.keep_stages else {}),
  )


@functools.lru_cache(_PROGRAMS_KEPT)
def _program(
  op: str,
  shapes: FrozenMap[str, int],
  dtype: str,
  config: Any,
  options: FrozenMap[str, Any],
  time_limit_s: float,
) -> TritonProgram:
  """The op's one Triton kernel; several targets and stages share its first steps."""
  kernels = triton_ir(op, shapes, dtype, config, **options)
  if len(kernels) != 1:
    raise NotImplementedError(f"{op} with {config.describe()} is {len(kernels)} kernels")
  return TritonProgram(kernels[0].ir, time_limit_s=time_limit_s)


def _ascend(task: CompileTask, compiler: str) -> Compiled:
  find_compilers()  # what is missing is said first: the extra brings the JAX that is needed, too
  stages = task.config.num_stages
  note = ""
  if stages > MOST_COPIES:
    note = f"num_stages={stages}: this compiler keeps one copy or two, and was asked for two"
    stages = MOST_COPIES
  # Triton IR does not depend on the stages
  config = dataclasses.replace(task.config, num_stages=1)
  program = _program(task.op, task.shapes, task.dtype, config, task.options, task.time_limit_s)
  options = with_stages(
    CompileOptions(keep_passes=task.keep_passes, time_limit_s=task.time_limit_s), stages
  )
  plan = program.plan(task.profile, options=options)
  texts = plan.stages
  return Compiled(
    task,
    compiler,
    "accepted" if plan.fits else "too large",
    plan.reason,
    ascend=dataclasses.replace(plan, stages=FrozenMap()),
    operations=count_operations(texts["hivm"]) if plan.fits else None,
    note=note,
    stages=texts if task.keep_stages or task.keep_passes else FrozenMap(),
  )
