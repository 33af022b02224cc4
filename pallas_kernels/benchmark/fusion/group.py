"""Neighbouring operations of the activation chain, as what one kernel computes."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

import hw_profiles
from hw_profiles.rowwise.problem import RowProblem
from pallas_kernels import activations
from pallas_kernels.rowwise import codec
from pallas_kernels.rowwise.arithmetic import Arithmetic
from pallas_kernels.rowwise.specs import Blocks, wide


@dataclasses.dataclass(frozen=True)
class ChainGroup:
  """An `ElementSpec` of some of silu, multiply and quantize.

  Attributes:
    operations: Names in `hw_profiles.swiglu_chain`, neighbours, in order.
    reads: Tensors that come in.
    dtype: Of G, U, T and Z.
    codes: Of Q.
  """

  operations: tuple[str, ...]
  reads: tuple[str, ...]
  dtype: str
  codes: str

  @property
  def out_dtypes(self) -> tuple[jnp.dtype, ...]:
    """That of the last operation's result."""
    return (jnp.dtype(self.codes if self.operations[-1] == "quantize" else self.dtype),)

  def problem(self, *, rows: int, columns: int, dtype: str) -> RowProblem:
    """See `ElementSpec`: the op with the same blocks."""
    return hw_profiles.SwigluProblem(rows, columns, dtype)

  def apply(self, blocks: Blocks, per_row: Blocks, arithmetic: Arithmetic) -> Blocks:
    """See `ElementSpec`; the scale comes in where there is a quantize."""
    tensors = {name: wide(block) for name, block in zip(self.reads, blocks, strict=True)}

    def silu() -> None:
      t = activations.silu(tensors["G"], native_exp2=arithmetic.native_exp2, functions=arithmetic)
      tensors["T"] = arithmetic.narrow(t, jnp.dtype(self.dtype))

    def multiply() -> None:
      tensors["Z"] = arithmetic.narrow(tensors["T"] * tensors["U"], jnp.dtype(self.dtype))

    def quantize() -> None:
      tensors["Q"] = codec.encode(tensors["Z"], per_row[0], jnp.dtype(self.codes), arithmetic)

    steps: dict[str, Callable[[], None]] = {
      "silu": silu,
      "multiply": multiply,
      "quantize": quantize,
    }
    for name in self.operations:
      steps[name]()
    out: jax.Array = list(tensors.values())[-1]
    return (out.astype(self.out_dtypes[0]),)
