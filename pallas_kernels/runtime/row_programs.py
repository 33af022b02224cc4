"""`RowPrograms`: a function of rows at any number of rows, from few compiled programs."""

import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

import hw_profiles
from hw_profiles.arguments import as_int, collection
from pallas_kernels.runtime.executable_cache import ExecutableCache

Strategy = Literal["general", "bucketed", "specialised"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclasses.dataclass(frozen=True)
class RowsUse:
  """What calls came to.

  Attributes:
    calls: Calls of the function.
    rows: Rows that held data.
    computed_rows: Rows that were computed, padding among them.
    programs: Hits, misses, evictions and time of compiling.
  """

  calls: int
  rows: int
  computed_rows: int
  programs: hw_profiles.ProgramCacheUse

  @property
  def extra_fraction(self) -> float:
    """Rows computed in vain, as a share of `rows`; 0 where there are none."""
    return (self.computed_rows - self.rows) / self.rows if self.rows else 0.0


def _integers(sizes: Sequence[Any]) -> tuple[Any, ...]:
  """NumPy's integers as Python's; anything else as it is, to be refused."""
  return tuple(as_int(size) for size in sizes)


class RowPrograms:
  """A function whose rows do not depend on each other, compiled for few numbers of rows.

      specialised   a program for each number of rows: nothing computed in vain, most compiling
      bucketed      rows padded to the smallest bucket that holds them: a program a bucket
      general       one program of `buckets[0]` rows, called for one block of rows after
                    another: one compilation for any number of rows, more launches

  The function takes arrays with rows first (a matmul's A, the operand of a norm) and
  others that every row shares (weights), and returns arrays with a row for each. Rows
  that pad are zeros; what is computed of them is cut off. A row's bits may depend on
  the size of its program, as tiles are chosen for sizes; `batch_invariant=True` of the
  products keeps them. A function that mixes rows (a mean over them, attention
  between them) is not one of rows: padding and blocks change its results, and only what
  shows in the results' shapes is refused.

  Operands that are NumPy arrays are padded where they are. Arrays of JAX are padded and
  cut by programs of JAX's own, small ones that it compiles for each length: `cut=False`
  leaves the rows that pad in the result. Calls of several threads are fine.

  Example, the rows of a server that come in all lengths:

      ffn = RowPrograms(
        lambda x, gate, up: pallas_kernels.gated_matmul(x, gate, up),
        buckets=(256, 1024, 4096), capacity=8)
      hidden = ffn(x, w_gate, w_up)
      ffn.use.programs.misses, ffn.use.extra_fraction
  """

  def __init__(
    self,
    function: Callable[..., Any],
    *,
    buckets: Sequence[int] = (),
    strategy: Strategy = "bucketed",
    rows: Sequence[int] = (0,),
    capacity: int | None = None,
    cut: bool = True,
  ) -> None:
    """A function with no program yet.

    Args:
      function: What is compiled; options are to be bound to it (functools.partial).
      buckets: Numbers of rows to pad to; of "general" the first is its block;
        "specialised" takes none.
      strategy: One of STRATEGIES.
      rows: Which positional arguments have rows first; a None among them is passed
        on, trees of arrays are, too.
      capacity: Programs held at once; None: all of them.
      cut: Whether results lose the rows that pad.

    Raises:
      ValueError: an argument is wrong, or `buckets` do not suit the strategy.
    """
    if not callable(function):
      raise ValueError(f"function={function!r}: expected a function of arrays")
    collection("buckets", buckets)
    collection("rows", rows)
    buckets, rows = _integers(buckets), _integers(rows)
    if strategy not in STRATEGIES:
      raise ValueError(f"strategy={strategy!r}: expected one of {', '.join(STRATEGIES)}")
    for size in (*buckets, *rows):
      if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"buckets={buckets!r}, rows={rows!r}: expected integers of at least 0")
    if strategy == "specialised" and buckets:
      raise ValueError(
        f"buckets={buckets!r}: strategy='specialised' compiles each number of rows; expected none"
      )
    if strategy != "specialised" and (not buckets or min(buckets) < 1):
      raise ValueError(
        f"buckets={buckets!r}: strategy={strategy!r} needs at least one, each of at least 1,"
        " for example (256, 1024, 4096)"
      )
    if strategy == "general" and len(buckets) > 1:
      raise ValueError(f"buckets={buckets!r}: strategy='general' has one block; expected one")
    if not rows:
      raise ValueError("rows=(): expected the arguments that have rows first, for example (0,)")
    self._function = function
    self._buckets = tuple(sorted(set(buckets)))
    self._strategy = strategy
    self._rows = tuple(rows)
    self._cut = cut
    self._cache: ExecutableCache[Callable[..., Any]] = ExecutableCache(capacity=capacity)
    self._checked: set[Hashable] = set()
    self._counted = (0, 0, 0)
    self._lock = threading.Lock()

  @property
  def use(self) -> RowsUse:
    """What calls came to so far."""
    with self._lock:
      return RowsUse(*self._counted, programs=self._cache.use)

  def program_rows(self, rows: int) -> tuple[int, ...]:
    """The number of rows of each program that a call of so many rows runs.

    Raises:
      ValueError: no bucket holds them.
    """
    if not rows:
      return ()
    if self._strategy == "specialised":
      return (rows,)
    if self._strategy == "general":
      block = self._buckets[0]
      return (block,) * -(-rows // block)
    try:
      found = hw_profiles.bucketing([(1, rows)], buckets=self._buckets)
    except ValueError:
      raise ValueError(
        f"rows={rows}: expected at most the largest of buckets={self._buckets}; add a bucket of at"
        f" least {rows}, or strategy='general'"
      ) from None
    return found.programs

  def __call__(self, *arguments: Any) -> Any:
    """The function of the arguments.

    Raises:
      ValueError: an argument is no array, numbers of rows differ, no bucket holds
        them, the result has no row for each, or an argument, or what the function
        closes over, is traced: this is inside of jit, grad or vmap.
    """
    rows = self._row_count(arguments)
    sizes = self.program_rows(rows)
    if not sizes:  # nothing to run: the shapes alone
      self._check_result(arguments, 0, self._signature(arguments))
      whole = jax.eval_shape(self._function, *arguments)
      self._count(0, 0)
      return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), whole)
    results = []
    for index, size in enumerate(sizes):
      part = slice(index * size, min(rows, (index + 1) * size))
      results.append(self._run(self._part(arguments, part, size), size, part.stop - part.start))
    self._count(rows, sum(sizes))
    if len(results) == 1:
      return results[0]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *results)

  def _count(self, rows: int, computed: int) -> None:
    with self._lock:
      calls, before, computed_before = self._counted
      self._counted = (calls + 1, before + rows, computed_before + computed)

  def _row_count(self, arguments: Sequence[Any]) -> int:
    """Rows of the arguments that have them, which must be as many in each."""
    if len(arguments) <= max(self._rows):
      raise ValueError(
        f"{len(arguments)} arguments: rows={self._rows} expects at least {max(self._rows) + 1}"
      )
    found: dict[int, int] = {}
    for position, argument in enumerate(arguments):
      for leaf in jax.tree.leaves(argument):
        if isinstance(leaf, jax.core.Tracer):
          raise ValueError(
            f"argument {position}: is traced; inside of jit, grad or vmap call the function itself:"
            " its sizes are fixed there"
          )
        if not isinstance(leaf, jax.Array | np.ndarray):
          raise ValueError(
            f"argument {position}: expected arrays, got {leaf!r}; bind options to the function"
          )
        if position not in self._rows:
          continue
        if not leaf.ndim:
          raise ValueError(f"argument {position}: expected rows first, got a scalar")
        found.setdefault(position, leaf.shape[0])
        if leaf.shape[0] != found[position]:
          raise ValueError(
            f"argument {position}: its arrays have {found[position]} and {leaf.shape[0]} rows"
          )
    if len(set(found.values())) != 1:
      told = ", ".join(f"argument {position} has {count}" for position, count in found.items())
      raise ValueError(f"rows: {told or 'no argument has any'}; expected equally many in each")
    return next(iter(found.values()))

  def _part(self, arguments: Sequence[Any], part: slice, size: int) -> tuple[Any, ...]:
    """The arguments with these rows alone, padded to `size`."""

    def of(leaf: jax.Array | np.ndarray[Any, Any]) -> jax.Array | np.ndarray[Any, Any]:
      if part.start or part.stop < leaf.shape[0]:
        leaf = leaf[part]
      missing = size - leaf.shape[0]
      if not missing:
        return leaf
      widths = [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)
      return np.pad(leaf, widths) if isinstance(leaf, np.ndarray) else jnp.pad(leaf, widths)

    return tuple(
      jax.tree.map(of, argument) if position in self._rows else argument
      for position, argument in enumerate(arguments)
    )

  def _run(self, arguments: tuple[Any, ...], size: int, rows: int) -> Any:
    """The program of this size, made where it is not there, on padded arguments."""
    signature = self._signature(arguments)

    def compiled() -> Callable[..., Any]:
      self._check_result(arguments, size, signature)
      traced = jax.jit(self._function).trace(*arguments)
      # JAX makes operands of the traced values that a function closes over
      if len(traced.jaxpr.in_avals) != len(jax.tree.leaves(arguments)):
        raise ValueError(
          "function: closes over a traced value; inside of jit, grad or vmap call the function"
          " itself, or make the value an argument"
        )
      program: Callable[..., Any] = traced.lower().compile()
      return program

    result = self._cache.get((size, signature), compiled)(*arguments)
    if rows == size or not self._cut:
      return result
    return jax.tree.map(lambda leaf: leaf[:rows], result)

  def _signature(self, arguments: tuple[Any, ...]) -> Hashable:
    """What a program is for, besides its number of rows."""
    leaves, structure = jax.tree.flatten(arguments)
    row_leaves, _ = jax.tree.flatten(
      tuple(
        jax.tree.map(lambda _, own=position in self._rows: own, argument)
        for position, argument in enumerate(arguments)
      )
    )
    # what is traced, and where it runs, depends on these besides the arguments
    config: Any = jax.config
    settings = (
      config.jax_enable_x64,
      config.jax_default_matmul_precision,
      config.jax_default_device,
    )
    return (
      structure,
      settings,
      tuple(
        (
          leaf.shape[1:] if has_rows else leaf.shape,
          str(leaf.dtype),
          getattr(leaf, "weak_type", False),
          getattr(leaf, "sharding", None),
        )
        for leaf, has_rows in zip(leaves, row_leaves, strict=True)
      ),
    )

  def _check_result(self, arguments: tuple[Any, ...], size: int, signature: Hashable) -> None:
    """Refuses a function whose results do not have a row for each; once a signature.

    With one row more every result must have one more: a size that happens to be the
    same would be cut.
    """
    if signature in self._checked:
      return
    shapes = []
    for rows in (size, size + 1):
      sized = tuple(
        jax.tree.map(
          lambda leaf, rows=rows: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype),
          argument,
        )
        if position in self._rows
        else argument
        for position, argument in enumerate(arguments)
      )
      shapes.append([x.shape for x in jax.tree.leaves(jax.eval_shape(self._function, *sized))])
    for index, (shape, larger) in enumerate(zip(*shapes, strict=True)):
      if shape[:1] != (size,) or larger != (size + 1, *shape[1:]):
        raise ValueError(
          f"result {index}: of {size} rows it has shape {shape}, of {size + 1} {larger}; expected a"
          " row for each, first"
        )
    self._checked.add(signature)
