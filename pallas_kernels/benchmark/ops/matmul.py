"""C = round_out(act(round_mid(A·B + bias))), as the benchmark sees it."""

import dataclasses
from typing import TYPE_CHECKING, Any

import hw_profiles
from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels.benchmark import cells
from pallas_kernels.benchmark.ops.op import (
  Function,
  Op,
  Operands,
  Shape,
  numpy_dtype,
  option,
)
from pallas_kernels.benchmark.ops.verdict import Verdict, unjudged, verdict

if TYPE_CHECKING:
  import jax

  import pallas_kernels

_DTYPES = ("bfloat16", "float16", "float32")
# The planner prices neither roundings, nor the order of the sum, nor precision.
_RUNNING = ("compare", "run")


@dataclasses.dataclass(frozen=True)
class MatmulShape(Shape):
  """A of m x k, B of k x n, `batch` of them where given."""

  m: int
  k: int
  n: int
  batch: int | None = None

  @property
  def products(self) -> int:
    """How many there are: `batch`, or 1."""
    return 1 if self.batch is None else self.batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatmulOptions:
  """The options of `pallas_kernels.matmul` that are flags."""

  bias: bool = option(False, "Add a bias row before the activation.")
  activation: str | None = option(
    None, "Applied after the reduction", choices=hw_profiles.ACTIVATIONS
  )
  out_dtype: str | None = option(None, "Result dtype; left out: the operands'", choices=_DTYPES)
  intermediate_dtype: str | None = option(
    None, "Rounding of the product before the activation", choices=_DTYPES, tasks=_RUNNING
  )
  precision: str | None = option(
    None,
    "For float32 operands, a jax.lax.Precision; left out: float32 accuracy, never TF32",
    choices=("default", "high", "highest"),
    tasks=_RUNNING,
  )
  batch_invariant: bool = option(
    False, "A row's bits may not depend on the other rows.", tasks=_RUNNING
  )


class Matmul(Op[MatmulShape, MatmulConfig, MatmulOptions]):
  """`pallas_kernels.matmul`."""

  name = "matmul"
  shape_class = MatmulShape
  # The up-projection of Qwen3-8B's feed-forward block for 1024 tokens.
  default_shape = MatmulShape(m=1024, k=4096, n=12288)
  config_class = MatmulConfig
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
  dtypes = _DTYPES
  peers = ("xla",)

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

  def describe_plan(self, plan: hw_profiles.TilePlan) -> tuple[str, ...]:
    """Tiles and K steps, bytes of A, B and C."""
    traffic = plan.traffic
    assert isinstance(traffic, hw_profiles.MatmulTraffic)
    rows, columns = plan.grid
    return (
      f"tiles: {rows} x {columns}, {traffic.k_steps} K steps each; resident blocks: "
      f"{plan.resident_blocks}; waves: {plan.waves}, {plan.tail_efficiency:.0%} full",
      f"working set: {cells.kib(traffic.working_set_bytes)} KiB; traffic of a product: "
      f"A {cells.mib(traffic.a_read_bytes)} + B {cells.mib(traffic.b_read_bytes)} + "
      f"C {cells.mib(traffic.c_write_bytes)} = {cells.mib(traffic.total_bytes)} MiB, "
      f"{traffic.intensity:.1f} FLOP/B",
    )

  def traffic_bytes(self, plan: hw_profiles.TilePlan) -> int:
    """A plan's traffic is that of one product."""
    return plan.traffic.total_bytes * plan.problem.batch

  def flops(self, shape: MatmulShape) -> int:
    """2·batch·m·n·k: a multiply and an add for each term."""
    return 2 * shape.products * shape.m * shape.n * shape.k

  def once_through_bytes(self, shape: MatmulShape, dtype: str, options: MatmulOptions) -> int:
    """A and B read once, C written once."""
    return self.problem(shape, dtype, options).once_through_bytes

  def steps(self, shape: MatmulShape, config: MatmulConfig) -> tuple[int, int]:
    """A program for each tile of C, a step for each block of K."""
    programs = shape.products * -(-shape.m // config.block_m) * -(-shape.n // config.block_n)
    return programs, -(-shape.k // config.block_k)

  # --- operands

  def operand_shapes(
    self, shape: MatmulShape, options: MatmulOptions
  ) -> tuple[tuple[int, ...] | None, ...]:
    """A [batch,] m x k, B [batch,] k x n and, where asked for, a bias row of n."""
    leading = () if shape.batch is None else (shape.batch,)
    return (
      (*leading, shape.m, shape.k),
      (*leading, shape.k, shape.n),
      (shape.n,) if options.bias else None,
    )

  # --- a part of the result

  def sample(self, shape: MatmulShape) -> MatmulShape:
    """Rows and columns of several tiles, the whole of K, where the errors add up."""
    return dataclasses.replace(shape, m=min(shape.m, 128), n=min(shape.n, 512))

  def cut(self, operands: Operands, part: MatmulShape) -> Operands:
    """The first rows of A, the first columns of B and of the bias."""
    import numpy as np

    a, b, bias = operands
    assert a is not None
    assert b is not None
    return (
      np.ascontiguousarray(a[..., : part.m, :]),
      np.ascontiguousarray(b[..., : part.n]),
      None if bias is None else bias[: part.n],
    )

  def describe_part(self, part: MatmulShape, whole: MatmulShape) -> str:
    """Rows and columns of C."""
    return f"rows 0:{part.m}, columns 0:{part.n}"

  # --- what runs

  def explain(
    self,
    shape: MatmulShape,
    dtype: str,
    options: MatmulOptions,
    *,
    config: MatmulConfig | None,
    implementation: str | None,
  ) -> "pallas_kernels.Explanation":
    """`pallas_kernels.explain` of the call."""
    import pallas_kernels

    a, b, bias = self.abstract_operands(shape, dtype, options)
    return pallas_kernels.explain(
      pallas_kernels.matmul,
      a,
      b,
      bias=bias,
      **_keywords(options),
      config=config,
      implementation=implementation,
    )

  def call(
    self, options: MatmulOptions, *, config: MatmulConfig | None, implementation: str | None
  ) -> Function:
    """f(a, b, bias)."""
    import pallas_kernels

    def matmul(a: "jax.Array", b: "jax.Array", bias: "jax.Array | None") -> "jax.Array":
      return pallas_kernels.matmul(
        a, b, bias=bias, **_keywords(options), config=config, implementation=implementation
      )

    return matmul

  def peer(self, name: str, options: MatmulOptions) -> Function:
    """xla: act(A·B + bias) in plain jax.numpy, compiled by XLA: cuBLAS on a GPU.

    float32 operands ask for float32 accuracy, as the kernels give it; XLA's
    default on a GPU would be TF32, another computation.
    """
    import jax
    import jax.numpy as jnp

    def xla(a: "jax.Array", b: "jax.Array", bias: "jax.Array | None") -> "jax.Array":
      out_dtype = jnp.dtype(options.out_dtype or a.dtype)
      intermediate_dtype = jnp.dtype(options.intermediate_dtype or out_dtype)
      plain = bias is None and options.activation is None
      x = jnp.matmul(
        a,
        b,
        precision=options.precision or ("highest" if a.dtype == jnp.float32 else None),
        preferred_element_type=out_dtype if plain else jnp.float32,
      )
      if bias is not None:
        x = x + bias.astype(x.dtype)
      if options.activation is not None:
        activation = getattr(jax.nn, options.activation)
        x = activation(x.astype(intermediate_dtype).astype(jnp.float32))
      return x.astype(out_dtype)

    return {"xla": xla}[name]

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

    a, b, bias = operands
    assert a is not None
    assert b is not None
    dtype = a.dtype.name
    if platform == "gpu" and dtype == "float32" and options.precision in ("default", "high"):
      return unjudged(
        f"precision={options.precision} lets a GPU round float32 operands to TF32, and the bound "
        "is for operands as they are"
      )
    return verdict(
      reference.check_matmul(
        actual,
        a,
        b,
        bias=bias,
        activation=options.activation,  # type: ignore[arg-type]
        intermediate_dtype=_dtype(options.intermediate_dtype),
        out_dtype=numpy_dtype(options.out_dtype or dtype),
        # The interpreted portable kernel finishes each block_k product before it
        # adds it. An MMA accumulates in place, and XLA's order is its own.
        accumulation_chunk=config.block_k if config is not None and ran == "interpret" else None,
        accumulate=dispatch.accumulation(ran, dtype, platform),
      )
    )


def _dtype(name: str | None) -> Any:
  return None if name is None else numpy_dtype(name)


def _keywords(options: MatmulOptions) -> dict[str, Any]:
  """The options as `pallas_kernels.matmul` takes them, bias apart."""
  return {
    "activation": options.activation,
    "intermediate_dtype": _dtype(options.intermediate_dtype),
    "out_dtype": _dtype(options.out_dtype),
    "precision": options.precision,
    "batch_invariant": options.batch_invariant,
  }


MATMUL = Matmul()
