"""C = round_out(act(round_mid(A·B + bias))), as the benchmark sees it."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hw_profiles
from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels.benchmark.ops import matmul_peers
from pallas_kernels.benchmark.ops.gemm import (
  FLOAT_DTYPES,
  FloatOptions,
  GemmOp,
  MatmulShape,
  interpreted_chunk,
  optional_dtype,
)
from pallas_kernels.benchmark.ops.gradients import with_gradients, with_gradients_judged
from pallas_kernels.benchmark.ops.matmul_peers import PEERS
from pallas_kernels.benchmark.ops.op import Function, Operands, numpy_dtype, option
from pallas_kernels.benchmark.ops.verdict import Verdict, unjudged, verdict

if TYPE_CHECKING:
  import jax


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatmulOptions(FloatOptions):
  """The options of `pallas_kernels.matmul` that are flags."""

  bias: bool = option(False, "Add a bias row before the activation.")
  activation: str | None = option(
    None, "Applied after the reduction", choices=hw_profiles.ACTIVATIONS
  )


class Matmul(GemmOp[MatmulOptions]):
  """`pallas_kernels.matmul`."""

  name = "matmul"
  tasks = (*GemmOp.tasks, "ladder")
  # The two tiles whose trade between reuse and room the project starts from,
  # one operand pair at a time: working sets of 24 KiB and 80 KiB for 16-bit
  # operands. Then one that suits each family: four stages of a wgmma-sized tile
  # on Hopper, and one whose accumulator fills the 128 KiB of L0C on Ascend 910B
  # with operands double-buffered in L1.
  default_tiles = (
    MatmulConfig(64, 64, 32, 1),
    MatmulConfig(128, 128, 32, 1),
    MatmulConfig(128, 256, 64, 4),
    MatmulConfig(128, 256, 256, 2),
  )
  options_class = MatmulOptions
  dtypes = FLOAT_DTYPES
  peers = PEERS

  # --- the planner's side

  def problem(self, shape: MatmulShape, dtype: str, options: MatmulOptions) -> MatmulProblem:
    """One B for each A: operands are drawn so."""
    return MatmulProblem(
      m=shape.m,
      k=shape.k,
      n=shape.n,
      dtype=dtype,
      out_dtype=options.out_dtype,
      bias=options.bias,
      activation=options.activation,
      batch=shape.products,
    )

  # --- operands

  def operand_shapes(
    self, shape: MatmulShape, options: MatmulOptions
  ) -> tuple[tuple[int, ...] | None, ...]:
    """A [batch,] m x k, B [batch,] k x n; if asked for a bias row of n, the result's gradient."""
    return (
      (*shape.leading, shape.m, shape.k),
      (*shape.leading, shape.k, shape.n),
      (shape.n,) if options.bias else None,
      *(((*shape.leading, shape.m, shape.n),) if options.backward else ()),
    )

  # --- a part of the result

  def cut(self, operands: Operands, part: MatmulShape) -> Operands:
    """The first rows of A, the first columns of B and of the bias."""
    import numpy as np

    a, b, bias, *d_out = operands
    assert a is not None
    assert b is not None
    return (
      np.ascontiguousarray(a[..., : part.m, :]),
      np.ascontiguousarray(b[..., : part.n]),
      None if bias is None else bias[: part.n],
      *(x[..., : part.m, : part.n] for x in d_out if x is not None),
    )

  # --- what runs

  def arguments(
    self, operands: tuple[Any, ...], options: MatmulOptions
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """matmul(a, b, bias=bias, ...)."""
    a, b, bias = operands[:3]
    return (a, b), {
      "bias": bias,
      "activation": options.activation,
      **options.arguments(),
    }

  def peer(self, name: str, options: MatmulOptions) -> Function:
    """xla: act(A·B + bias) in plain jax.numpy: cuBLAS on a GPU. The others: `matmul_peers`."""
    import jax
    import jax.numpy as jnp

    def xla(a: "jax.Array", b: "jax.Array", bias: "jax.Array | None") -> "jax.Array":
      out_dtype = jnp.dtype(options.out_dtype or a.dtype)
      intermediate_dtype = jnp.dtype(options.intermediate_dtype or out_dtype)
      plain = bias is None and options.activation is None
      x = jnp.matmul(
        a,
        b,
        precision=options.xla_precision(a.dtype),
        preferred_element_type=out_dtype if plain else jnp.float32,
      )
      if bias is not None:
        x = x + bias.astype(x.dtype)
      if options.activation is not None:
        activation = getattr(jax.nn, options.activation)
        x = activation(x.astype(intermediate_dtype).astype(jnp.float32))
      return x.astype(out_dtype)

    if name != "xla":
      plain = options == MatmulOptions()
      return matmul_peers.peer(name, plain=plain)
    return with_gradients(xla) if options.backward else xla

  def check(
    self,
    actual: Any,
    operands: Operands,
    options: MatmulOptions,
    *,
    ran: str,
    config: MatmulConfig | None,
    platform: str,
  ) -> Verdict:
    """`reference.check_matmul`, with the order of accumulation of what ran."""
    import reference
    from pallas_kernels import dispatch

    a, b, bias, *d_out = operands
    assert a is not None
    assert b is not None
    dtype = a.dtype.name
    if ran in matmul_peers.ELSEWHAT:
      return unjudged(matmul_peers.ELSEWHAT[ran])
    if (reason := options.why_unjudged(dtype, platform)) is not None:
      return unjudged(reason)
    out, *gradients = actual if options.backward else (actual,)
    accumulate = dispatch.accumulation(ran, dtype, platform)
    found = verdict(
      reference.check_matmul(
        out,
        a,
        b,
        bias=bias,
        activation=options.activation,  # type: ignore[arg-type]
        intermediate_dtype=optional_dtype(options.intermediate_dtype),
        out_dtype=numpy_dtype(options.out_dtype or dtype),
        accumulation_chunk=interpreted_chunk(config, ran),
        accumulate=accumulate,
      )
    )
    if not options.backward:
      return found

    upstream: Any = d_out[0]

    def bounds() -> dict[str, Any]:
      of_each = reference.bounded_matmul_gradients(
        a,
        b,
        upstream.astype(out.dtype),
        bias=bias,
        activation=options.activation,  # type: ignore[arg-type]
        intermediate_dtype=optional_dtype(options.intermediate_dtype or options.out_dtype),
        accumulate=accumulate,
      )
      return {name: x for name, x in of_each._asdict().items() if x is not None}

    return with_gradients_judged(found, gradients, ran=ran, bounds=bounds)


MATMUL = Matmul()
