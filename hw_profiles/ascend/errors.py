"""What can go wrong between a Triton kernel and Huawei's compiler."""

import re

from hw_profiles.frozen_map import FrozenMap


class AscendError(RuntimeError):
  """The route to an Ascend plan ended early."""


class CompilersNotInstalledError(AscendError):
  """The compilers of the `[ascend]` extra are not there, or not the pinned versions."""


class UnsupportedIrError(AscendError, ValueError):
  """The text has something that the route has no rule for; nothing is guessed."""


class CompilerFailedError(AscendError):
  """A compiler rejected its input, crashed, or took longer than it was given.

  A tile that is too large is no such failure: it is a plan that does not fit.

  Attributes:
    tool: Name of the program.
    kind: "rejected", "crashed" or "timed out".
    log: What it printed.
    stages: The texts up to the one that it failed on, by stage.
  """

  def __init__(self, tool: str, kind: str, log: str, stages: dict[str, str]):
    """Makes the message of what the log says first."""
    self.tool = tool
    self.kind = kind
    self.log = log
    self.stages: FrozenMap[str, str] = FrozenMap(stages)
    last = next(reversed(stages), "none")
    signs = ("error:", "assertion", "llvm error")
    # where a text stood on disk says nothing, and the missing code generator is no error
    lines = [re.sub(r'loc\("[^"]*":\d+:\d+\):?\s*', "", line).strip() for line in log.splitlines()]
    lines = [line for line in lines if line and "hivmc" not in line]
    errors = [line for line in lines if any(sign in line.lower() for sign in signs)]
    shown = "; ".join(dict.fromkeys((errors or lines)[:3])) or "it printed nothing"
    super().__init__(f"{tool} {kind} on stage {last!r} (its text is in .stages): {shown}")
