"""What the benchmark asks of an op; `ops/matmul.py` is one.

An op names its sizes, tile, options and operands, says what runs and how a
result is checked. Flags, tasks, rows and tables are written against this class
alone, so that an op is one file and a line in `ops/__init__.py`.

Methods that run something import JAX and NumPy when they are called: planning,
which needs neither, starts without them.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import hw_profiles
from pallas_kernels.benchmark.ops.verdict import Verdict

if TYPE_CHECKING:
  import numpy as np
  import numpy.typing as npt

  import pallas_kernels

# What an op is called with, in order; None where an optional one is left out.
Operands = tuple["npt.NDArray[np.generic] | None", ...]
# Takes the operands as JAX arrays (or None) and returns the op's result.
Function = Callable[..., Any]

_SEED = 20240229


@dataclasses.dataclass(frozen=True)
class Shape:
  """Sizes of one problem. An op's class adds a field for each size."""

  def __str__(self) -> str:
    """The sizes as `--shape` takes them, defaults left out."""
    return ",".join(
      f"{field.name}={getattr(self, field.name)}"
      for field in dataclasses.fields(self)
      if getattr(self, field.name) != field.default
    )


class Config(Protocol):
  """A tile: a frozen dataclass whose fields `--tile` takes."""

  def describe(self) -> str:
    """The tile as `--tile` takes it."""


S = TypeVar("S", bound=Shape)
C = TypeVar("C", bound=Config)
O = TypeVar("O")  # noqa: E741


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
  """How one field of an op's options is a flag.

  Attributes:
    help: For `--help`.
    choices: The words it takes, where it takes words.
    read: Its text to its value, where it takes neither words nor yes and no;
      raises ValueError with what it expected.
    tasks: The tasks that read it; None: all.
  """

  help: str
  choices: tuple[str, ...] | None
  read: Callable[[str], Any] | None
  tasks: tuple[str, ...] | None

  @property
  def boolean(self) -> bool:
    """Whether it is `--name` or `--noname`."""
    return self.choices is None and self.read is None


# Tasks that read what the planner does not price: roundings, the order of a sum, precision.
RUNNING = ("compare", "run", "numerics")
_METADATA_KEY = "flag"


def option(
  default: Any,
  help: str,
  *,
  choices: Sequence[str] | None = None,
  read: Callable[[str], Any] | None = None,
  tasks: Sequence[str] | None = None,
) -> Any:
  """A field of an op's options class: see `Option`. Without choices or read, yes or no."""
  flag = Option(
    help=help,
    choices=None if choices is None else tuple(choices),
    read=read,
    tasks=None if tasks is None else tuple(tasks),
  )
  return dataclasses.field(default=default, metadata={_METADATA_KEY: flag})


def options_of(options_class: Any) -> dict[str, Option]:
  """The flags of an op's options class, by name."""
  return {field.name: field.metadata[_METADATA_KEY] for field in dataclasses.fields(options_class)}


def option_flags(options: Any) -> list[str]:
  """The flags that give these options again, those left to their default not among them."""
  flags = []
  for field in dataclasses.fields(options):
    value = getattr(options, field.name)
    if value == field.default:
      continue
    if isinstance(value, bool):
      flags.append(f"--{field.name}" if value else f"--no{field.name}")
    else:
      flags.append(f"--{field.name}={value}")
  return flags


class Op(abc.ABC, Generic[S, C, O]):
  """One op, as the benchmark sees it.

  Attributes:
    name: What `--kernel` calls it.
    shape_class: Its sizes; a field without a default must be given.
    default_shape: The problem that is meant where `--shape` is left out.
    config_class: Its tile.
    default_tiles: What `compare` and `plan` look at where `--tile` is left out.
    options_class: A frozen dataclass of `option` fields.
    dtypes: Operand dtypes, by name.
    planned_dtypes: Those of them that the planner takes and no kernel does.
    peers: What people would use instead, by name.
    tasks: The tasks that do something with it.
    transposed_operands: Those, by position, that callers keep as their transpose.
  """

  name: str
  shape_class: type[S]
  default_shape: S
  config_class: type[C]
  default_tiles: tuple[C, ...]
  options_class: type[O]
  dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
  planned_dtypes: tuple[str, ...] = ()
  peers: tuple[str, ...] = ()
  tasks: tuple[str, ...] = ("compare", "run", "plan", "numerics")
  transposed_operands: tuple[int, ...] = ()

  @property
  def run_dtypes(self) -> tuple[str, ...]:
    """The operand dtypes that kernels take."""
    return tuple(dtype for dtype in self.dtypes if dtype not in self.planned_dtypes)

  # --- the planner's side

  @abc.abstractmethod
  def problem(self, shape: S, dtype: str, options: O) -> Any:
    """The planner's description of the problem."""

  def plan(self, problem: Any, config: C, profile: str) -> hw_profiles.TilePlan:
    """The planner's verdict on a tile; one that does not fit has its reason in it."""
    return hw_profiles.plan(problem, config, hw_profiles.get_profile(profile))

  def best(self, problem: Any, profile: str) -> C | None:
    """The tile the planner ranks first on a profile; None where none fits."""
    ranked = hw_profiles.rank(problem, hw_profiles.get_profile(profile), top=1)
    best: Any = ranked[0].config if ranked and ranked[0].fits else None
    return best

  @abc.abstractmethod
  def describe_plan(self, plan: hw_profiles.TilePlan) -> tuple[str, ...]:
    """Lines of `--task=plan` about the grid and the traffic."""

  def traffic_bytes(self, plan: hw_profiles.TilePlan) -> int:
    """Bytes between the working buffers and the next tier, whole problem."""
    return plan.traffic.total_bytes

  def plan_details(self, plan: hw_profiles.TilePlan) -> Mapping[str, int]:
    """What else a row keeps of a plan, by name."""
    return {}

  @abc.abstractmethod
  def flops(self, shape: S) -> int:
    """Floating-point operations of the whole problem."""

  def counted_flops(self, shape: S, options: O) -> int:
    """Those that a measured rate counts, where an option leaves some out or adds some."""
    return self.flops(shape)

  def check_flops(self, shape: S) -> int:
    """Those of a check against float64, which computes a result and a bound."""
    return 2 * self.flops(shape)

  @abc.abstractmethod
  def once_through_bytes(self, shape: S, dtype: str, options: O) -> int:
    """Bytes any program must move: operands read once, result written once."""

  @abc.abstractmethod
  def steps(self, shape: S, config: C) -> tuple[int, int]:
    """Programs of a launch, and the loop steps of each: what an interpreter's time depends on."""

  # --- operands

  @abc.abstractmethod
  def operand_shapes(self, shape: S, options: O) -> tuple[tuple[int, ...] | None, ...]:
    """Of each operand, in the order of the call; None for one that is left out."""

  def operands(self, shape: S, dtype: str, options: O) -> Operands:
    """Standard normal operands, drawn in float32 and rounded to `dtype`; the same on every run.

    Never zeros: they would hide errors, and draw less power on a GPU, so that
    it clocks higher than on real data.
    """
    return draw(self.operand_shapes(shape, options), dtype)

  def abstract_operands(self, shape: S, dtype: str, options: O) -> tuple[Any, ...]:
    """Shapes and dtypes of the operands, without arrays."""
    import jax

    return tuple(
      None if size is None else jax.ShapeDtypeStruct(size, numpy_dtype(dtype))
      for size in self.operand_shapes(shape, options)
    )

  def device_operands(self, shape: S, dtype: str, options: O) -> tuple[Any, ...]:
    """Operands like `operands`, drawn on the device, which is quick; for timing."""
    return draw_on_device(self.abstract_operands(shape, dtype, options))

  def checked_operands(self, operands: Operands, options: O) -> Operands:
    """The operands that give the result which is checked; those measured unless an op says else."""
    return operands

  # --- a part of the result, where the whole would take too long

  @abc.abstractmethod
  def sample(self, shape: S) -> S:
    """The sizes of a part of the problem that stands for the rest in a check."""

  @abc.abstractmethod
  def cut(self, operands: Operands, part: S) -> Operands:
    """The operands of that part of the result."""

  def cut_result(self, result: Any, part: S) -> Any:
    """That part of the whole result; an op that is tuned has it."""
    raise NotImplementedError(f"{self.name}: no part of a result can be taken")

  @abc.abstractmethod
  def describe_part(self, part: S, whole: S) -> str:
    """Which part of the result that is; not called for all of it."""

  # --- what runs

  @abc.abstractmethod
  def explain(
    self, shape: S, dtype: str, options: O, *, config: C | None, implementation: str | None
  ) -> "pallas_kernels.Explanation":
    """Which implementation and tile would run.

    Raises:
      ValueError, NotImplementedError: nothing would; says why.
    """

  @abc.abstractmethod
  def call(self, options: O, *, config: C | None, implementation: str | None) -> Function:
    """The op as a function of its operands."""

  def peer(self, name: str, options: O) -> Function:
    """One of `peers` as a function of the operands, written as people would write it."""
    raise NotImplementedError(f"{self.name} has no peer {name}")

  @abc.abstractmethod
  def check(
    self,
    actual: Any,
    operands: Operands,
    options: O,
    *,
    ran: str,
    config: C | None,
    platform: str,
  ) -> Verdict:
    """Holds a result against the float64 reference.

    Args:
      actual: The result, NumPy arrays.
      operands: Its operands.
      options: What was computed.
      ran: The implementation, or the peer, that computed it.
      config: Its tile; None where it has none.
      platform: Where it ran, "cpu" or "gpu".
    """


class PublicOp(Op[S, C, O]):
  """An op that is the public function of its name."""

  @abc.abstractmethod
  def arguments(
    self, operands: tuple[Any, ...], options: O
  ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """How the public function of the op's name takes the operands and the options."""

  def explain(
    self, shape: S, dtype: str, options: O, *, config: C | None, implementation: str | None
  ) -> "pallas_kernels.Explanation":
    """`pallas_kernels.explain` of the call."""
    import pallas_kernels

    positional, named = self.arguments(self.abstract_operands(shape, dtype, options), options)
    return pallas_kernels.explain(
      getattr(pallas_kernels, self.name),
      *positional,
      **named,
      config=config,
      implementation=implementation,
    )

  def call(self, options: O, *, config: C | None, implementation: str | None) -> Function:
    """The public function, as a function of the operands."""
    import pallas_kernels

    function = getattr(pallas_kernels, self.name)

    def run(*operands: Any) -> Any:
      positional, named = self.arguments(operands, options)
      return function(*positional, **named, config=config, implementation=implementation)

    run.__name__ = self.name
    return run


AnyOp = Op[Any, Any, Any]


def draw(shapes: Sequence[tuple[int, ...] | None], dtype: str) -> Operands:
  """Standard normal arrays, drawn in float32 and rounded; None where the shape is."""
  import numpy as np

  # one generator an array, so that an optional one does not change the others
  seeds = np.random.SeedSequence(_SEED).spawn(len(shapes))
  return tuple(
    None
    if size is None
    else np.random.default_rng(seed)
    .standard_normal(size, dtype=np.float32)
    .astype(numpy_dtype(dtype))
    for size, seed in zip(shapes, seeds, strict=True)
  )


def draw_on_device(abstract: Sequence[Any]) -> tuple[Any, ...]:
  """Standard normal arrays of these shapes and dtypes; None where there is none.

  Codes of 8 bits are spread over their format's range, as quantised data are.
  """
  import jax
  import jax.numpy as jnp

  keys = jax.random.split(jax.random.key(_SEED, impl="rbg"), len(abstract))
  return tuple(
    None if one is None else _normal()(key, tuple(one.shape), jnp.dtype(one.dtype))
    for key, one in zip(keys, abstract, strict=True)
  )


@functools.cache
def _normal() -> Callable[..., Any]:
  """What draws one array: made once, so that a size is compiled once for all ops."""
  import jax
  import jax.numpy as jnp

  @functools.partial(jax.jit, static_argnums=(1, 2))
  def normal(key: Any, size: tuple[int, ...], dtype: Any) -> Any:
    drawn = jax.random.normal(key, size, jnp.float32)
    if dtype.itemsize > 1:
      return drawn.astype(dtype)
    info = jnp.iinfo(dtype) if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo(dtype)
    most = float(info.max)
    # one in 10^8 lies beyond six standard deviations
    return jnp.clip(drawn * (most / 6), -most, most).astype(dtype)

  drawing: Callable[..., Any] = normal
  return drawing


def numpy_dtype(name: str) -> "np.dtype[np.generic]":
  """The NumPy dtype called `name`, those of ml_dtypes included."""
  import ml_dtypes
  import numpy as np

  extended = getattr(ml_dtypes, name, None)
  return np.dtype(name if extended is None else extended)
