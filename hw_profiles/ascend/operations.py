"""What a compiled HIVM program does, counted by kind of operation."""

import dataclasses
import re

from hw_profiles.ascend.ssa_text import statements

# Huawei's library of tile operations, which a 910's program calls by name; a 950's
# vector functions are instructions of their own dialect.
_CALL = re.compile(r"(?:func\.)?call @(\w+)\(")
_DOT = re.compile(r"mma_tile_")
_COPY = re.compile(r"nd2nz_|load_gm_|load_\w+_to_|store_\w+_to_|copy_|fixpipe_")
_VECTOR = re.compile(r"v[a-z]+_|broadcast_|enablevc_|reduce_|transpose_")
_INTRINSIC = re.compile(r"hivm_regbaseintrins\.intr\.hivm\.(\w+)")
# loads and stores of vector registers, and masks, are no arithmetic
_REGISTER_MOVE = re.compile(r"vld|vst|pge|pld|pst|pintlv|vdups|init")


@dataclasses.dataclass(frozen=True)
class HivmOperations:
  """Counts of a program's text: what stands in a loop counts once.

  Attributes:
    dots: Matrix products of the cube.
    copies: Copies between memories: GM to L1 and UB, L0C out, UB to GM.
    vector_operations: Operations of the vector cores.
    flags_set: Cross-core flags set.
    flags_awaited: Cross-core flags waited for.
    pipe_flags: Flags between the pipes of one core, set.
    pipe_barriers: Barriers of a pipe.
  """

  dots: int
  copies: int
  vector_operations: int
  flags_set: int
  flags_awaited: int
  pipe_flags: int
  pipe_barriers: int


def count_operations(hivm: str) -> HivmOperations:
  """Counts the operations of a module.hivm.opt.mlir.

  Raises:
    UnsupportedIrError: its braces do not balance.
  """
  called: list[str] = []
  intrinsics: list[str] = []
  names: list[str] = []
  for statement in statements(hivm):
    names.append(statement.operation)
    if (call := _CALL.match(statement.text)) is not None:
      called.append(call[1])
    if (intrinsic := _INTRINSIC.match(statement.text.strip('"'))) is not None:
      intrinsics.append(intrinsic[1])
  dots = [name for name in called if _DOT.match(name)]
  copies = [name for name in called if _COPY.match(name)]
  vectors = [name for name in called if _VECTOR.match(name)]
  vectors += [name for name in intrinsics if not _REGISTER_MOVE.match(name)]
  return HivmOperations(
    dots=len(dots),
    copies=len(copies),
    vector_operations=len(vectors),
    flags_set=names.count("hivm.hir.sync_block_set"),
    flags_awaited=names.count("hivm.hir.sync_block_wait"),
    pipe_flags=names.count("hivm.hir.set_flag"),
    pipe_barriers=names.count("hivm.hir.pipe_barrier"),
  )
