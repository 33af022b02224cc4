"""What the ops of the family C = epilogue(A·B) have in common, as the benchmark sees them."""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import hw_profiles
from hw_profiles import MatmulConfig, MatmulProblem
from pallas_kernels.benchmark import cells
from pallas_kernels.benchmark.ops.gradients import with_gradients
from pallas_kernels.benchmark.ops.op import RUNNING, Function, PublicOp, Shape, numpy_dtype, option

if TYPE_CHECKING:
  import pallas_kernels

FLOAT_DTYPES = ("bfloat16", "float16", "float32")

O = TypeVar("O")  # noqa: E741


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

  @property
  def leading(self) -> tuple[int, ...]:
    """The dimensions before the matrix."""
    return () if self.batch is None else (self.batch,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FloatOptions:
  """The options that are flags of the products of float operands."""

  out_dtype: str | None = option(
    None, "Result dtype; left out: the operands'", choices=FLOAT_DTYPES
  )
  intermediate_dtype: str | None = option(
    None, "Rounding of the product before the activation", choices=FLOAT_DTYPES, tasks=RUNNING
  )
  precision: str | None = option(
    None,
    "For float32 operands, a jax.lax.Precision; left out: float32 accuracy, never TF32",
    choices=("default", "high", "highest"),
    tasks=RUNNING,
  )
  batch_invariant: bool = option(
    False, "A row's bits may not depend on the other rows.", tasks=RUNNING
  )
  backward: bool = option(
    False,
    "The gradients of the operands, with the result and behind it, as in training.",
    tasks=("run", "numerics"),
  )

  def arguments(self) -> dict[str, Any]:
    """These options as the public functions take them."""
    return {
      "intermediate_dtype": optional_dtype(self.intermediate_dtype),
      "out_dtype": optional_dtype(self.out_dtype),
      "precision": self.precision,
      "batch_invariant": self.batch_invariant,
    }

  def xla_precision(self, dtype: Any) -> str | None:
    """What plain JAX is asked for: float32 accuracy of float32 operands, as the kernels give it.

    XLA's default on a GPU would be TF32, another computation.
    """
    return self.precision or ("highest" if numpy_dtype("float32") == dtype else None)

  def why_unjudged(self, dtype: str, platform: str) -> str | None:
    """Why no bound is known where the operands themselves may be rounded; None: they are not."""
    if platform == "gpu" and dtype == "float32" and self.precision in ("default", "high"):
      return (
        f"precision={self.precision} lets a GPU round float32 operands to TF32, and the bound is "
        "for operands as they are"
      )
    return None


# The up-projection of Qwen3-8B's feed-forward block for 1024 tokens.
QWEN_UP_PROJECTION = MatmulShape(m=1024, k=4096, n=12288)


class GemmOp(PublicOp[MatmulShape, MatmulConfig, O]):
  """An op of `pallas_kernels.gemm`: its shape, its tile, its traffic."""

  shape_class = MatmulShape
  default_shape = QWEN_UP_PROJECTION
  config_class = MatmulConfig
  tasks: tuple[str, ...] = ("compare", "run", "plan", "numerics", "tune")
  # of B for each A
  matrices = 1

  # --- the planner's side

  @abc.abstractmethod
  def problem(self, shape: MatmulShape, dtype: str, options: O) -> MatmulProblem:
    """One B for each A: operands are drawn so."""

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

  def flops(self, shape: MatmulShape) -> int:
    """2·batch·m·n·k of each product: a multiply and an add for each term."""
    return 2 * self.matrices * shape.products * shape.m * shape.n * shape.k

  def counted_flops(self, shape: MatmulShape, options: O) -> int:
    """With gradients three times the forward: each of its products has two."""
    return (3 if self.goes_backward(options) else 1) * self.flops(shape)

  def traffic_bytes(self, plan: hw_profiles.TilePlan) -> int:
    """A plan's traffic is that of one product."""
    return plan.traffic.total_bytes * plan.problem.batch

  def once_through_bytes(self, shape: MatmulShape, dtype: str, options: O) -> int:
    """A and B read once, C written once; in a run with gradients the same of those."""
    forward = self.problem(shape, dtype, options).once_through_bytes
    if not self.goes_backward(options):
      return forward
    operands = shape.m * shape.k + self.matrices * shape.k * shape.n
    gradients = shape.products * (2 * operands + shape.m * shape.n)
    return forward + gradients * numpy_dtype(dtype).itemsize

  @staticmethod
  def goes_backward(options: O) -> bool:
    """Whether a run computes the operands' gradients, too."""
    return isinstance(options, FloatOptions) and options.backward

  def explain(
    self,
    shape: MatmulShape,
    dtype: str,
    options: O,
    *,
    config: MatmulConfig | None,
    implementation: str | None,
  ) -> "pallas_kernels.Explanation":
    """As the base class; with gradients a note that the plan is of the result alone."""
    found = super().explain(shape, dtype, options, config=config, implementation=implementation)
    if not self.goes_backward(options):
      return found
    note = "measured with gradients, whose products have tiles of their own; predicted without"
    return dataclasses.replace(found, notes=(*found.notes, note))

  def call(
    self, options: O, *, config: MatmulConfig | None, implementation: str | None
  ) -> Function:
    """The result; with gradients that and theirs, of operands of which the last is its own."""
    forward = super().call(options, config=config, implementation=implementation)
    return with_gradients(forward) if self.goes_backward(options) else forward

  def steps(self, shape: MatmulShape, config: MatmulConfig) -> tuple[int, int]:
    """A program for each tile of C, a step for each block of K."""
    programs = shape.products * -(-shape.m // config.block_m) * -(-shape.n // config.block_n)
    return programs, -(-shape.k // config.block_k)

  # --- a part of the result

  def sample(self, shape: MatmulShape) -> MatmulShape:
    """Rows and columns of several tiles, the whole of K, where the errors add up."""
    return dataclasses.replace(shape, m=min(shape.m, 128), n=min(shape.n, 512))

  def cut_result(self, result: Any, part: MatmulShape) -> Any:
    """The first rows and columns of C."""
    return result[..., : part.m, : part.n]

  def describe_part(self, part: MatmulShape, whole: MatmulShape) -> str:
    """Rows and columns of C."""
    return f"rows 0:{part.m}, columns 0:{part.n}"


def optional_dtype(name: str | None) -> Any:
  """The NumPy dtype of that name; None: None."""
  return None if name is None else numpy_dtype(name)


def interpreted_chunk(config: MatmulConfig | None, ran: str) -> int | None:
  """Terms that are summed before they are added to the accumulator; None: not known.

  The interpreted portable kernel finishes each block_k product before it adds
  it. An MMA accumulates in place, and XLA's order is its own.
  """
  return config.block_k if config is not None and ran == "interpret" else None
