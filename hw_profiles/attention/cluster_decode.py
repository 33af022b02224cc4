"""Decode attention on Hopper: wgmma, and parts of a sequence that merge inside a cluster.

One warpgroup a block copies by TMA and multiplies. The blocks of a cluster have
one part each of the keys of one key head; each merges its share of the columns:

    shared memory   Q; a ring of K, from which the result leaves in the end, and
                    one of V; with parts, everyone's share of this block's columns
                    and their softmax numbers; barriers
    registers       accumulator, scores and their 16-bit fragments, of 64 rows
"""

from hw_profiles.arguments import round_up
from hw_profiles.attention import warp_specialized
from hw_profiles.attention.config import DecodeConfig
from hw_profiles.attention.decode_problem import DecodeProblem
from hw_profiles.attention.passes import AttentionPass
from hw_profiles.attention.sm import PassKernel
from hw_profiles.capacity.buffers import Buffer, Shortfall
from hw_profiles.capacity.warpgroups import WARPGROUP_THREADS
from hw_profiles.profile import GpuProfile

# Rows of a wgmma: the query heads of a key head are the first of them.
ROWS = warp_specialized.WGMMA_ROWS
# Parts of a sequence: blocks of a cluster. More than 8 is what CUDA calls a non-portable size.
PARTS = (1, 2, 4, 8, 16)
# Head sizes are whole swizzle spans of 128 B, and parts have powers of two of columns, of which
# a wgmma's registers hold 8 side by side.
HEAD_DIMS = (64, 128, 256)
LEAST_COLUMNS = 8
# Columns of a block's softmax numbers on their way to another: peak and total, 4 each.
NUMBERS = 8
# Mosaic describes the caches to TMA in tiles of 8 keys, which must divide them.
KEY_TILE = 8
# A step sums over whole swizzle spans of keys; 256 overfill the registers.
BLOCK_KVS = (64, 128)
# Of 171 registers that ptxas (CUDA 13.0) gives 64 keys at a head size of 128, all but the 112
# values: row maxima and sums, addresses, fragments on their way.
OVERHEAD_REGISTERS = 59
_REGISTER_STEP = 8


def parts_of(problem: DecodeProblem) -> tuple[int, ...]:
  """The numbers of parts that leave each at least 8 columns to merge."""
  return _parts(problem.output_dim)


def most_parts(value_dim: int) -> int:
  """The most parts that leave each at least 8 columns to merge."""
  return _parts(value_dim)[-1]


def _parts(value_dim: int) -> tuple[int, ...]:
  return tuple(x for x in PARTS if x * LEAST_COLUMNS <= max(value_dim, LEAST_COLUMNS))


def unsupported_problem(problem: DecodeProblem) -> tuple[Shortfall, ...]:
  """What no tile of the kernel does."""
  found: list[Shortfall] = []

  def lacks(resource: str, statement: str) -> None:
    found.append(Shortfall("unsupported", resource, (), statement))

  for name, dim in (("head_dim", problem.head_dim), ("value_dim", problem.output_dim)):
    if dim not in HEAD_DIMS:
      lacks(name, f"{name}={dim}: the kernel takes {_listed(HEAD_DIMS)}")
  if problem.seq_q > 1:
    lacks("seq_q", f"seq_q={problem.seq_q}: the kernel takes one query a sequence")
  if problem.rows > ROWS:
    lacks("heads", f"{problem.rows} query heads of a key head: a tile has {ROWS} rows")
  if problem.page_size is not None:
    lacks("page_size", "page_table: the kernel reads caches whose keys lie one after another")
  elif problem.seq_kv % KEY_TILE:
    lacks("seq_kv", f"a capacity of {problem.seq_kv} keys: TMA copies take multiples of {KEY_TILE}")
  return tuple(found)


def _listed(numbers: tuple[int, ...]) -> str:
  *most, last = numbers
  return f"{', '.join(map(str, most))} and {last}" if most else str(last)


def shared_buffers(one: AttentionPass, parts: int) -> dict[str, tuple[int, int]]:
  """Bytes and copies of everything a block has in shared memory."""
  (_, head_dim), (_, value_dim) = one.streamed
  stages, size = one.num_stages, one.size_bytes
  keys, values = (stages * one.columns * dim * size for dim in (head_dim, value_dim))
  leaving = ROWS * (value_dim // parts) * size + ROWS * NUMBERS * 4
  held = {
    "Q": (ROWS * head_dim * size, 1),
    "K ring, then O": (max(keys, leaving), stages),
    "V ring": (values, stages),
    "barriers": ((2 * stages + 2) * warp_specialized.BARRIER_BYTES, 2 * stages + 2),
  }
  if parts > 1:
    held["shares of O"] = (ROWS * value_dim * 4, parts)
    held["their maxima and sums"] = (parts * ROWS * NUMBERS * 4, parts)
  return held


def values(one: AttentionPass) -> int:
  """Registers of a thread for accumulator, scores and 16-bit fragments of 64 rows."""
  (_, value_dim) = one.streamed[1]
  return ROWS * (2 * (value_dim + one.columns) + one.columns) // (2 * WARPGROUP_THREADS)


def pass_buffers(gpu: GpuProfile, one: AttentionPass, parts: int) -> tuple[Buffer, ...]:
  """Of one block."""
  found = [
    Buffer(name, "shared", needed, gpu.max_shared_bytes_per_block, count)
    for name, (needed, count) in shared_buffers(one, parts).items()
  ]
  free = gpu.max_registers_per_thread - OVERHEAD_REGISTERS
  found.append(
    Buffer(
      "O, scores and fragments",
      "registers",
      4 * WARPGROUP_THREADS * values(one),
      4 * WARPGROUP_THREADS * free,
      1,
    )
  )
  return tuple(found)


def shortfalls(
  config: DecodeConfig, gpu: GpuProfile, one: AttentionPass, parts: int
) -> tuple[Shortfall, ...]:
  """Rules of the kernel, then shared memory and registers."""
  found = []
  value_dim = one.streamed[1][1]
  if config.block_kv not in BLOCK_KVS:
    statement = f"the kernel's steps have {_listed(BLOCK_KVS)} keys"
    found.append(Shortfall("shape", "tile shape", ("block_kv",), statement))
  if parts not in _parts(value_dim):
    statement = f"a cluster has {_listed(_parts(value_dim))} blocks for values of {value_dim}"
    found.append(Shortfall("shape", "tile shape", ("num_splits",), statement))
    return tuple(found)
  needed = sum(size for size, _ in shared_buffers(one, parts).values())
  if needed > gpu.max_shared_bytes_per_block:
    found.append(
      Shortfall(
        "capacity",
        "shared_memory",
        ("num_stages", "block_kv", "num_splits"),
        f"shared memory needs {needed} B for Q, {one.num_stages} stage(s) of K and V and the shares"
        f" of {parts} part(s), {gpu.name} has {gpu.max_shared_bytes_per_block} B",
      )
    )
  registers = values(one) + OVERHEAD_REGISTERS
  if registers > gpu.max_registers_per_thread:
    found.append(
      Shortfall(
        "capacity",
        "registers",
        ("block_kv",),
        f"registers of a thread need {registers} for its share of O, scores and fragments,"
        f" {gpu.name} has {gpu.max_registers_per_thread}",
      )
    )
  return tuple(found)


def pass_kernel(one: AttentionPass, parts: int) -> PassKernel:
  """The thread block of a pass."""
  dims = tuple(dim for _, dim in one.streamed)
  merged = f", merged in a cluster of {parts} blocks" if parts > 1 else ""
  return PassKernel(
    threads=WARPGROUP_THREADS,
    registers_per_thread=round_up(values(one) + OVERHEAD_REGISTERS, _REGISTER_STEP),
    shared_bytes=sum(size for size, _ in shared_buffers(one, parts).values()),
    kept_dims=dims[:1],
    streamed_dims=dims,
    product_dims=dims,
    accumulator_dims=dims[1:],
    operand_reads_per_step=1,
    kept_reads_per_step=1,
    exposed_softmax=1.0,
    notes=(f"one warpgroup a block{merged}",),
  )
