"""Triton IR in, Ascend plan out: the compilers, one after the other.

    triton ─triton_passes, externs→ simplified ─triton-adapter-opt→ linalg
           ─bishengir-compile→ hivm, with an address for every buffer

The last program then looks for a code generator that only Huawei's CANN has, and
fails; the plan is complete by then. Options are those of triton-ascend 3.2.0.
"""

import dataclasses
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable

from hw_profiles.ascend import triton_passes
from hw_profiles.ascend.accumulators import check_folded
from hw_profiles.ascend.errors import CompilerFailedError, UnsupportedIrError
from hw_profiles.ascend.externs import rewrite_externs
from hw_profiles.ascend.install import Compilers, find_compilers
from hw_profiles.ascend.messages import Messages, parse_messages
from hw_profiles.ascend.plan import AscendPlan, CoreProgram, DoubleBuffering
from hw_profiles.ascend.process import run_tool
from hw_profiles.ascend.programs import parse_programs
from hw_profiles.ascend.targets import AscendTarget, get_target
from hw_profiles.frozen_map import FrozenMap

# Plans take 0.1 to 2 s; what takes longer than this has been seen to take for ever.
TIME_LIMIT_S = 60.0

_KERNEL = re.compile(r"tt\.func (?:public )?@([\w$.-]+)\(")


@dataclasses.dataclass(frozen=True)
class CompileOptions:
  """How to compile.

  Attributes:
    multi_buffer: Ask for double buffering; None: as triton-ascend does for the
      target (910 yes, 950 no).
    sub_block: Share a mixed tile between the two vector cores; None: likewise.
    keep_passes: Keep the module after each pass of bishengir-compile that
      changed it, in `AscendPlan.stages`. Slower.
    time_limit_s: For each compiler.
  """

  multi_buffer: bool | None = None
  sub_block: bool | None = None
  keep_passes: bool = False
  time_limit_s: float = TIME_LIMIT_S

  def __post_init__(self) -> None:
    for name in ("multi_buffer", "sub_block"):
      if getattr(self, name) not in (None, True, False):
        raise ValueError(f"{name}={getattr(self, name)!r}: expected True, False or None")


class TritonProgram:
  """One Triton kernel, and what has been made of it so far.

  Several plans of one kernel share the stages before bishengir-compile.
  """

  def __init__(self, triton_ir: str, *, time_limit_s: float = TIME_LIMIT_S):
    """Takes the text of a module with one `tt.func`; nothing is compiled yet.

    Raises:
      CompilersNotInstalledError: the `[ascend]` extra is not there.
      UnsupportedIrError: the module has no or several kernels.
    """
    kernels = _KERNEL.findall(triton_ir)
    if len(kernels) != 1:
      raise UnsupportedIrError(f"expected a module with one tt.func, got {len(kernels)}: {kernels}")
    self.kernel = kernels[0]
    self.triton_ir = triton_ir
    self._compilers = find_compilers()
    self._time_limit_s = time_limit_s
    self._simplified: str | None = None
    self._linalg: dict[bool, str] = {}

  def simplified(self) -> str:
    """The text after Triton's own passes, with `math` operations for extern functions.

    Raises:
      UnsupportedIrError: a function or a product that there is no rule for.
      CompilerFailedError: the passes rejected the text.
    """
    if self._simplified is None:
      text = self._run(
        "triton passes",
        self.triton_ir,
        {"triton": self.triton_ir},
        # -I: nothing of the caller's environment or folder is imported
        lambda source, result: [
          sys.executable,
          "-I",
          pathlib.Path(triton_passes.__file__),
          self._compilers.libtriton,
          source,
          result,
        ],
      )
      # where in the Python source each line comes from; the compilers do without
      text = re.sub(r" loc\(#loc\d*\)|^#loc.*$\n?", "", text, flags=re.M)
      text = rewrite_externs(text)
      check_folded(text)
      self._simplified = text
    return self._simplified

  def linalg(self, target: AscendTarget) -> str:
    """The linalg program that bishengir-compile is given; one for all of a generation.

    Raises:
      CompilerFailedError: triton-adapter-opt rejected the text.
    """
    if target.is_950 not in self._linalg:
      generation = f"compile-on-910-95={target.is_950}"
      text = self._run(
        "triton-adapter-opt",
        self.simplified(),
        {"triton": self.triton_ir, "simplified": self.simplified()},
        lambda source, result: [
          self._compilers.adapter,
          source,
          f"--discrete-mask-access-conversion={generation} force-simt-template=False",
          "--triton-to-annotation",
          f"--triton-to-unstructure={generation} force-simt-template=False",
          "--triton-to-hivm",
          "--triton-to-hfusion",
          "--triton-to-llvm",
          "--bubble-up-operation",
          "--triton-to-linalg=global-kernel=false named-ops=True enable-nd2nz-on-vector=False"
          f" enable-select-analysis={target.is_950} {generation}",
          "-o",
          result,
        ],
      )
      # bishengir-compile decides that by itself and does not know the attribute
      self._linalg[target.is_950] = re.sub(r', mix_mode\s*=\s*"[^"]*"', "", text)
    return self._linalg[target.is_950]

  def _run(
    self,
    tool: str,
    text: str,
    stages: dict[str, str],
    command: Callable[[pathlib.Path, pathlib.Path], list[str | pathlib.Path]],
  ) -> str:
    """What a compiler makes of `text`; `command` is its call on two files."""
    with tempfile.TemporaryDirectory(prefix="ascend-") as name:
      folder = pathlib.Path(name)
      source, result = folder / "in.mlir", folder / "out.mlir"
      source.write_text(text, encoding="utf-8")
      status, log = run_tool(
        command(source, result), folder=folder, stages=stages, time_limit_s=self._time_limit_s
      )
      if status or not result.exists():
        raise CompilerFailedError(tool, "rejected", log, stages)
      return result.read_text(encoding="utf-8")

  def plan(
    self, target: str | AscendTarget, *, options: CompileOptions | None = None
  ) -> AscendPlan:
    """The plan on one target; see `compile_triton`."""
    device = get_target(target)
    chosen = CompileOptions() if options is None else options
    stages = {"triton": self.triton_ir, "simplified": self.simplified()}
    stages["linalg"] = self.linalg(device)
    with tempfile.TemporaryDirectory(prefix="ascend-") as name:
      made, log = _bishengir(stages, device, chosen, self._compilers, pathlib.Path(name))
    return _read_plan(self.kernel, stages | made, log, device, chosen)


def _command(
  linalg: pathlib.Path,
  folder: pathlib.Path,
  target: AscendTarget,
  options: CompileOptions,
  compilers: Compilers,
) -> list[str | pathlib.Path]:
  """The call of bishengir-compile for a linalg file; its stages go into `folder`."""
  multi_buffer, sub_block = _asked(target, options)
  return [
    compilers.tool(target.compiler),
    linalg,
    f"--target={target.name}",
    f"--enable-auto-multi-buffer={multi_buffer}",
    f"--enable-auto-bind-sub-block={sub_block}",
    "--enable-hfusion-compile=true",
    "--enable-triton-kernel-compile=true",
    *([] if target.is_950 else ["--enable-hivm-compile=true"]),
    f"--save-temps={folder}",
    "-o",
    folder / "kernel",
  ]


def _asked(target: AscendTarget, options: CompileOptions) -> tuple[bool, bool]:
  """Multi-buffer and sub-block as they are asked for."""
  return (
    target.default_multi_buffer if options.multi_buffer is None else options.multi_buffer,
    target.default_sub_block if options.sub_block is None else options.sub_block,
  )


def _double_buffering(
  asked: bool, messages: Messages, programs: tuple[CoreProgram, ...]
) -> DoubleBuffering:
  if not asked:
    return "not asked for"
  if not programs:
    return "does not fit"
  if "enable-auto-multi-buffer" in messages.given_up:
    return "dropped"
  doubled = any(buffer.count > 1 for program in programs for buffer in program.buffers)
  return "kept" if doubled else "nothing to buffer"


def _core(programs: tuple[CoreProgram, ...]) -> str:
  cores = sorted({program.core for program in programs})
  return cores[0] if len(cores) == 1 else "mixed"


def _pass_stages(folder: pathlib.Path) -> dict[str, str]:
  """The module after each pass, in order; named "012 hivm-plan-memory"."""
  files = sorted(folder.rglob("*.mlir"), key=lambda path: (path.stat().st_mtime_ns, path.name))
  return {
    f"{number:03} {path.stem.split('_', 1)[-1]}": path.read_text(encoding="utf-8")
    for number, path in enumerate(files)
  }


def _bishengir(
  stages: dict[str, str],
  target: AscendTarget,
  options: CompileOptions,
  compilers: Compilers,
  folder: pathlib.Path,
) -> tuple[dict[str, str], str]:
  """Runs bishengir-compile on the linalg stage: the stages it made, and its log."""
  linalg, out, passes = folder / "in.mlir", folder / "out", folder / "passes"
  linalg.write_text(stages["linalg"], encoding="utf-8")
  out.mkdir()
  command = _command(linalg, out, target, options, compilers)
  if options.keep_passes:
    command += [
      "--mlir-disable-threading",
      "--mlir-print-ir-after-all",
      "--mlir-print-ir-after-change",
      "--mlir-print-ir-module-scope",
      f"--mlir-print-ir-tree-dir={passes}",
    ]
  planned = out / "module.hivm.opt.mlir"

  def run(*more: str) -> str:
    return run_tool(
      [*command, *more], folder=folder, stages=stages, time_limit_s=options.time_limit_s
    )[1]

  # The 950's compiler tries five times where it finds no code generator, in
  # tuning mode once (0.3 s in place of 1 s); but then it keeps silent about some
  # overflows of UB.
  log = run("--enable-tuning-mode") if target.is_950 else run()
  if target.is_950 and not planned.exists() and parse_messages(log).overflow is None:
    log = run()
  made = _pass_stages(passes) if passes.exists() else {}
  if planned.exists():
    made["hivm"] = planned.read_text(encoding="utf-8")
  return made, log


def _read_plan(
  kernel: str, stages: dict[str, str], log: str, target: AscendTarget, options: CompileOptions
) -> AscendPlan:
  messages = parse_messages(log)
  programs: tuple[CoreProgram, ...] = ()
  workspace = 0
  if "hivm" in stages:
    programs, workspace = parse_programs(stages["hivm"])
  elif messages.overflow is None:
    raise CompilerFailedError(target.compiler, "rejected", log, stages)
  multi_buffer, sub_block = _asked(target, options)
  return AscendPlan(
    kernel=kernel,
    target=target.name,
    multi_buffer=multi_buffer,
    sub_block=sub_block,
    fits=bool(programs),
    overflow=None if programs else messages.overflow,
    core=_core(programs) if programs else "",
    programs=programs,
    workspace_bytes_per_block=workspace,
    double_buffering=_double_buffering(multi_buffer, messages, programs),
    given_up=messages.given_up,
    sub_block_reverted=messages.sub_block_reverted,
    notes=messages.notes,
    stages=FrozenMap(stages),
  )


def compile_triton(
  triton_ir: str,
  target: str | AscendTarget,
  *,
  options: CompileOptions | None = None,
) -> AscendPlan:
  """Take a Triton kernel through Huawei's compiler to its memory plan.

  A kernel that does not fit is an answer, not an error. The texts differ from run
  to run (the order of some operations is that of pointers): compare plans.

  Args:
    triton_ir: A module with one `tt.func`.
    target: A target, its name, or the name of a profile that has one.
    options: How to compile.

  Raises:
    ValueError: there is no such target.
    CompilersNotInstalledError: the `[ascend]` extra is not there.
    UnsupportedIrError: the text has something that there is no rule for.
    CompilerFailedError: a compiler rejected the kernel for another reason than
      memory, crashed, or took too long. Nothing is left on disk; the error has
      the texts.
  """
  device = get_target(target)
  chosen = CompileOptions() if options is None else options
  program = TritonProgram(triton_ir, time_limit_s=chosen.time_limit_s)
  return program.plan(device, options=chosen)
