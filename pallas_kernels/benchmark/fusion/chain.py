"""The activation chain T = silu(G), Z = T⊙U, Q = codes of Z for a fixed scale, cut into kernels.

Each group of neighbouring operations is one kernel. T and Z are rounded to the
operands' dtype whether they are stored or stay in registers: where a tensor
lives and which format it has are independent choices, and so all four
partitions give the same bits.
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import hw_profiles
from hw_profiles import GpuProfile, RowConfig
from hw_profiles.fusion.partitions import groups_of
from pallas_kernels.benchmark import rows as report_rows
from pallas_kernels.benchmark.fusion.program import OpProgram, Program
from pallas_kernels.benchmark.ops.op import Function, Operands, draw
from pallas_kernels.benchmark.ops.rowwise import QWEN_ACTIVATION
from pallas_kernels.benchmark.ops.swiglu_quantize import SWIGLU_QUANTIZE, SwigluQuantizeOptions
from pallas_kernels.benchmark.ops.verdict import Verdict

if TYPE_CHECKING:
  import jax

  from pallas_kernels.rowwise.specs import ElementSpec

DTYPE = "bfloat16"
CODES = "float8_e4m3fn"
# Not a power of two, so that a quotient is rounded. The largest |Z| of standard
# normal operands is near 14: no code saturates.
SCALE = 0.03125 * 1.1
# One block for every kernel of the chain, so that partitions differ in nothing
# else: what the planner ranks first for swiglu at this size on an H200.
TILE = RowConfig(1, 2048, 1)

CHAIN = hw_profiles.swiglu_chain(
  rows=QWEN_ACTIVATION.rows, width=QWEN_ACTIVATION.columns, dtype=DTYPE, quantized_dtype=CODES
)


def cut_name(partition: tuple[int, ...]) -> str:
  """(2, 1) as "12|3": a digit an operation, a bar where a kernel ends."""
  digits = iter(range(1, sum(partition) + 1))
  return "|".join("".join(str(next(digits)) for _ in range(size)) for size in partition)


@functools.cache
def kernels(partition: tuple[int, ...]) -> "tuple[tuple[ElementSpec, tuple[str, ...], str], ...]":
  """Of each kernel what it computes, the tensors it reads, and the one it writes."""
  from pallas_kernels.benchmark.fusion.group import ChainGroup

  found: list[tuple[Any, tuple[str, ...], str]] = []
  for start, stop in groups_of(CHAIN, partition):
    operations = CHAIN.operations[start:stop]
    inner = {operation.writes for operation in operations}
    reads = dict.fromkeys(name for op in operations for name in op.reads if name not in inner)
    group = ChainGroup(tuple(op.name for op in operations), tuple(reads), DTYPE, CODES)
    found.append((group, tuple(reads), operations[-1].writes))
  return tuple(found)


@dataclasses.dataclass(frozen=True)
class ChainProgram(Program):
  """One partition of the chain.

  Attributes:
    partition: Operations in each kernel, in order.
  """

  partition: tuple[int, ...]

  @property
  def _traffic(self) -> hw_profiles.FusionTraffic:
    return hw_profiles.fusion_traffic(CHAIN, partition=self.partition)

  @property
  def traffic_bytes(self) -> int:
    """See `Program`, as all others here."""
    return self._traffic.total_bytes

  @property
  def launches(self) -> int:
    """A kernel for each group."""
    return self._traffic.launches

  @property
  def peak_bytes(self) -> int:
    """With every tensor freed after its last reader."""
    return self._traffic.memory.peak_bytes

  def predict(self, profile: GpuProfile) -> tuple[float | None, str | None]:
    """`hw_profiles.fusion_time`."""
    time = hw_profiles.fusion_time(CHAIN, partition=self.partition, profile=profile, config=TILE)
    return time.total_us, time.bound

  def operands(self, rows: int) -> Operands:
    """G and U."""
    return draw(((rows, self.shape.columns),) * 2, self.dtype)

  def call(self, implementation: str | None) -> Function:
    """A `pallas_call` for each group."""
    import jax.numpy as jnp

    from pallas_kernels.rowwise import portable_elements

    def run(gate: "jax.Array", up: "jax.Array") -> "jax.Array":
      tensors = {"G": gate[None], "U": up[None]}
      for spec, reads, writes in kernels(self.partition):
        scale = (jnp.full((1, 1, 1), SCALE, jnp.float32),) if writes == "Q" else ()
        (tensors[writes],) = portable_elements.run(
          spec,
          tuple(tensors[name] for name in reads),
          scale,
          config=TILE,
          interpret=implementation == "interpret",
        )
      return tensors["Q"][0]

    return run

  def peer(self) -> Function:
    """XLA's kernels, kept apart by barriers where the partition cuts."""
    import jax
    import jax.numpy as jnp

    from pallas_kernels.rowwise import arithmetic

    def xla(gate: "jax.Array", up: "jax.Array") -> "jax.Array":
      tensors = {"G": gate, "U": up}
      for spec, reads, writes in kernels(self.partition):
        scale = (jnp.float32(SCALE),) if writes == "Q" else ()
        (out,) = spec.apply(tuple(tensors[name] for name in reads), scale, arithmetic.XLA)
        tensors[writes] = jax.lax.optimization_barrier(out)
      return tensors["Q"]

    return xla

  @property
  def peer_key(self) -> str:
    """XLA cut at the same places."""
    return self.name

  def cut_result(self, result: Any, rows: int) -> Any:
    """Its first rows."""
    return result[:rows]

  def check(self, actual: Any, operands: Operands, implementation: str | None) -> Verdict:
    """T within its bound of silu(G) in float64; Q the codes of round(T·U) for this T, to the bit.

    T is computed by the first kernel of the chain cut everywhere, where the
    program ran: no other partition stores it.
    """
    import numpy as np

    import reference
    from pallas_kernels.benchmark import runner

    gate, up = operands
    assert gate is not None
    assert up is not None
    first = dataclasses.replace(self, partition=(1, 1, 1)).activated(implementation)
    activated = runner.result(first, (gate,))
    close = reference.check_swiglu(activated, gate, np.ones_like(gate))
    product = reference.round_to(
      activated.astype(np.float64) * up.astype(np.float64), np.dtype(gate.dtype)
    )
    expected = reference.quantize(product, np.float32(SCALE), dtype=actual.dtype)
    wrong = int(np.sum(expected.view(np.uint8) != np.asarray(actual).view(np.uint8)))
    notes = []
    if not close.passed:
      notes.append(
        f"{close.failed_elements} of {close.elements} elements of T are past their bound"
      )
    if wrong:
      notes.append(f"{wrong} of {expected.size} codes are not those of round(T·U)")
    return Verdict(
      check=report_rows.FAILED if notes else report_rows.PASSED,
      worst_bound_fraction=close.worst_bound_fraction,
      notes=tuple(notes),
    )

  def activated(self, implementation: str | None) -> Function:
    """T alone, by the kernel that stores it."""
    from pallas_kernels.rowwise import portable_elements

    spec, _, _ = kernels((1, 1, 1))[0]

    def run(gate: "jax.Array") -> "jax.Array":
      (out,) = portable_elements.run(
        spec, (gate[None],), (), config=TILE, interpret=implementation == "interpret"
      )
      return out[0]

    return run


@dataclasses.dataclass(frozen=True)
class UnroundedChain(OpProgram[SwigluQuantizeOptions]):
  """The library's op: all fused, and Z float32 until it is a code."""

  @property
  def traffic_bytes(self) -> int:
    """Those of the chain in one kernel."""
    return hw_profiles.fusion_traffic(CHAIN, partition=(3,)).total_bytes

  @property
  def launches(self) -> int:
    """One."""
    return 1

  @property
  def peak_bytes(self) -> int:
    """Those of the chain in one kernel."""
    return hw_profiles.fusion_traffic(CHAIN, partition=(3,)).memory.peak_bytes

  def call(self, implementation: str | None) -> Function:
    """The codes; the scale is as it was given."""
    function = super().call(implementation)
    return lambda *operands: function(*operands)[0]

  def peer(self) -> Function:
    """The codes by XLA."""
    function = super().peer()
    return lambda *operands: function(*operands)[0]

  def check(self, actual: Any, operands: Operands, implementation: str | None) -> Verdict:
    """The op's."""
    import numpy as np

    return super().check((actual, np.float32(SCALE)), operands, implementation)


def programs() -> tuple[Program, ...]:
  """All four partitions, and the op."""
  cuts = hw_profiles.fusion_partitions(len(CHAIN.operations))
  return (
    *(ChainProgram("chain", cut_name(cut), QWEN_ACTIVATION, DTYPE, TILE, cut) for cut in cuts),
    UnroundedChain(
      "chain",
      SWIGLU_QUANTIZE.name,
      QWEN_ACTIVATION,
      DTYPE,
      None,
      SWIGLU_QUANTIZE,
      SwigluQuantizeOptions(scale=SCALE),
    ),
  )
