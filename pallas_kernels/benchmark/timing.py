"""How long a kernel takes on a GPU: medians after warm-up.

The device timer sums the kernels of one call, as CUPTI saw them run; the wall
timer is the time from the call to its result being there, launch included.
"""

import dataclasses
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

# Read between timed runs to push operands out of L2: twice the 126 MiB of a
# B200, the largest L2 of the known GPUs.
FLUSH_BYTES = 256 * 2**20

# The device timer keeps every result of a batch until the batch ends.
_KEPT_RESULT_BYTES = 2 * 2**30

# Clocks rise within some tens of milliseconds of steady work.
_WARM_UP_S = 0.1
_WARM_UP_CALLS = 100


@dataclasses.dataclass(frozen=True)
class Measurement:
  """Times of one call, microseconds.

  Attributes:
    median_us: The reported time.
    minimum_us: The fastest run.
    maximum_us: The slowest run.
    iterations: Runs timed.
    timer: "device" or "wall".
    cold_l2: Whether operands were out of L2 at the start of each run.
    launches: Kernels of a run; None with the wall timer, which sees none.
  """

  median_us: float
  minimum_us: float
  maximum_us: float
  iterations: int
  timer: str
  cold_l2: bool
  launches: int | None = None


def measure(
  function: Callable[..., jax.Array],
  arguments: Sequence[jax.Array],
  *,
  iterations: int,
  timer: str,
  cold_l2: bool,
) -> Measurement | None:
  """Times `function(*arguments)`, which jit must accept, on the GPU that JAX uses.

  Args:
    function: A pure function of arrays.
    arguments: Arrays on the device.
    iterations: Timed runs.
    timer: "device" (CUPTI) or "wall".
    cold_l2: Read 256 MiB of other data before each run.

  Returns:
    None where a call starts no kernel, as for an empty result.

  Raises:
    RuntimeError: cold_l2 with the device timer, and the kernels that read
      cannot be told from those of the function.
  """
  compiled = jax.jit(function)
  _warm_up(compiled, arguments)
  if timer == "device":
    runs = (
      _cold_device_runs(
        compiled_for_device_timer(function, arguments, cold_l2=True), arguments, iterations
      )
      if cold_l2
      else _device_runs(compiled, arguments, iterations)
    )
    return _measured_on_device(runs, cold_l2=cold_l2)
  times_us = _wall_times_us(compiled, arguments, iterations, cold_l2)
  return _measurement(times_us, timer=timer, cold_l2=cold_l2)


def lowered_for_device_timer(
  function: Callable[..., jax.Array], arguments: Sequence[Any], *, cold_l2: bool
) -> jax.stages.Lowered:
  """`function` for `measure_compiled`, before XLA sees it; arguments may be shapes."""
  if cold_l2:
    scratch = jax.ShapeDtypeStruct((FLUSH_BYTES // 4,), jnp.uint32)
    return jax.jit(_cold(function)).lower(scratch, *arguments)
  return jax.jit(function).lower(*arguments)


def compiled_for_device_timer(
  function: Callable[..., jax.Array], arguments: Sequence[Any], *, cold_l2: bool
) -> jax.stages.Compiled:
  """`function` for `measure_compiled`; arguments may be shapes. Takes a thread of its own well."""
  return lowered_for_device_timer(function, arguments, cold_l2=cold_l2).compile()


def result_of(
  compiled: jax.stages.Compiled, arguments: Sequence[Any], *, cold_l2: bool
) -> jax.Array:
  """What the function returns that `compiled_for_device_timer` compiled."""
  result = compiled(_scratch(), *arguments)[1] if cold_l2 else compiled(*arguments)
  return jax.block_until_ready(result)


def measure_compiled(
  compiled: jax.stages.Compiled,
  arguments: Sequence[Any],
  *,
  iterations: int,
  cold_l2: bool,
  warm_up_s: float = _WARM_UP_S,
) -> Measurement | None:
  """`measure` with the device timer, of what `compiled_for_device_timer` compiled."""
  if cold_l2:
    _warm_up(compiled, (_scratch(), *arguments), warm_up_s)
    runs = _cold_device_runs(compiled, arguments, iterations)
  else:
    _warm_up(compiled, arguments, warm_up_s)
    runs = _device_runs(compiled, arguments, iterations)
  return _measured_on_device(runs, cold_l2=cold_l2)


def on_device(
  call: Callable[..., jax.Array], *arguments: Any, transposed: Sequence[int] = ()
) -> tuple[Callable[..., jax.Array], tuple[jax.Array, ...]]:
  """`call` and its arguments for `measure`: arrays on the device, None bound beforehand.

  Args:
    call: The function.
    *arguments: Its arguments, in order.
    transposed: Which of them lie on the device as their transpose: the function
      takes that and transposes it back, which a call that wants them so undoes.
  """
  return taking_placed(call, arguments, transposed), placed(arguments, transposed)


def placed(arguments: Sequence[Any], transposed: Sequence[int]) -> tuple[jax.Array, ...]:
  """The arrays of `on_device`."""
  arrays: tuple[jax.Array, ...] = jax.device_put(
    tuple(_swapped(x, index in transposed) for index, x in enumerate(arguments) if x is not None)
  )
  return arrays


def placed_shapes(
  abstract: Sequence[jax.ShapeDtypeStruct | None], transposed: Sequence[int]
) -> tuple[jax.ShapeDtypeStruct, ...]:
  """The shapes and dtypes of `placed`, from those of the arguments."""
  return tuple(
    jax.ShapeDtypeStruct(
      (*x.shape[:-2], x.shape[-1], x.shape[-2]) if index in transposed else x.shape, x.dtype
    )
    for index, x in enumerate(abstract)
    if x is not None
  )


def taking_placed(
  call: Callable[..., jax.Array], arguments: Sequence[Any], transposed: Sequence[int]
) -> Callable[..., jax.Array]:
  """The function of `on_device`."""
  present = [argument is not None for argument in arguments]

  def function(*arrays: jax.Array) -> jax.Array:
    rest = iter(arrays)
    return call(
      *(
        _swapped(next(rest), index in transposed) if there else None
        for index, there in enumerate(present)
      )
    )

  return function


def _swapped(array: Any, swap: bool) -> Any:
  return array.swapaxes(-1, -2) if swap else array


def _measured_on_device(runs: Sequence[Sequence[float]], *, cold_l2: bool) -> Measurement | None:
  """From the microseconds of each kernel of each run."""
  found = _measurement([sum(run) for run in runs], timer="device", cold_l2=cold_l2)
  return found and dataclasses.replace(found, launches=len(runs[0]))


def _measurement(times_us: Sequence[float], *, timer: str, cold_l2: bool) -> Measurement | None:
  if not times_us:
    return None
  return Measurement(
    median_us=statistics.median(times_us),
    minimum_us=min(times_us),
    maximum_us=max(times_us),
    iterations=len(times_us),
    timer=timer,
    cold_l2=cold_l2,
  )


def _scratch() -> jax.Array:
  return jnp.zeros(FLUSH_BYTES // 4, jnp.uint32)


def _warm_up(
  compiled: Callable[..., Any], arguments: Sequence[Any], warm_up_s: float = _WARM_UP_S
) -> None:
  result = jax.block_until_ready(compiled(*arguments))  # compiles
  start = time.perf_counter()
  for _ in range(_WARM_UP_CALLS):
    result = jax.block_until_ready(compiled(*arguments))
    if time.perf_counter() - start > warm_up_s:
      break
  del result


def _device_runs(
  compiled: Callable[..., Any], arguments: Sequence[Any], iterations: int
) -> list[list[float]]:
  return [
    [milliseconds * 1e3 for _, milliseconds in kernels]
    for kernels in _kernels(compiled, arguments, iterations)
  ]


def _cold(function: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, jax.Array]]:
  """The function, after other data was read."""

  def cold(scratch: jax.Array, *arguments: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _flush(scratch), function(*arguments)

  return cold


def _cold_device_runs(
  cold: jax.stages.Compiled, arguments: Sequence[Any], iterations: int
) -> list[list[float]]:
  scratch = _scratch()
  names = Counter(flush_kernels(cold.as_text() or ""))
  calls = _kernels(cold, (scratch, *arguments), iterations)
  if not names or not all(_counted(kernels, names) == names for kernels in calls):
    # by the names that they have in a program of their own; in this one kernels of the
    # function may have taken them
    names = Counter(name for name, _ in _kernels(jax.jit(_flush), (scratch,), 1)[0])
  runs = []
  for kernels in calls:
    if _counted(kernels, names) != names:
      raise RuntimeError(
        f"cold_l2: cannot tell the kernels that read other data {sorted(names)} from those "
        f"measured {sorted({name for name, _ in kernels})}; measure without cold_l2"
      )
    mine = [milliseconds * 1e3 for name, milliseconds in kernels if name not in names]
    if mine:
      runs.append(mine)
  return runs


def _counted(kernels: Sequence[tuple[str, float]], names: Counter[str]) -> Counter[str]:
  """How often each of `names` is among the kernels of a call."""
  return Counter(name for name, _ in kernels if name in names)


def flush_kernels(text: str) -> list[str]:
  """Names of the kernels in a compiled program's text that empty L2: those that reduce by xor.

  XLA calls a kernel by the fusion that it is, and numbers fusions of a name in the
  order in which it makes them: what is called input_reduce_fusion in a program that
  only empties L2 may be input_reduce_fusion_2 in a larger one, in which something else
  has the shorter name.
  """
  computations: dict[str, list[str]] = {}
  lines: list[str] = []
  for line in text.splitlines():
    if (opened := re.match(r"(?:ENTRY )?%?([\w.-]+) .*\{$", line)) is not None:
      lines = computations.setdefault(opened.group(1), [])
    lines.append(line)
  xors = {
    name
    for name, body in computations.items()
    if any(re.search(r"ROOT .* xor\(", line) for line in body)
  }

  def called(line: str, by: str) -> str | None:
    found = re.search(by + r"=%?([\w.-]+)", line)
    return None if found is None else found.group(1)

  def reduces(line: str) -> bool:
    return " reduce" in line and called(line, "to_apply") in xors

  fused = {called(line, "calls") for body in computations.values() for line in body}
  flushing = {name for name, body in computations.items() if any(map(reduces, body))}
  found = []
  for computation, body in computations.items():
    for line in body:
      name = re.match(r"\s+(?:ROOT )?%?([\w.-]+) = ", line)
      alone = computation not in fused and reduces(line)
      if name is not None and (alone or called(line, "calls") in flushing):
        found.append(re.sub(r"\W", "_", name.group(1)))
  return found


def _flush(scratch: jax.Array) -> jax.Array:
  # A reduction that nothing else here has: `flush_kernels` finds its kernels by it.
  return jnp.bitwise_xor.reduce(scratch)


def _kernels(
  compiled: Callable[..., Any], arguments: Sequence[Any], iterations: int
) -> list[list[tuple[str, float]]]:
  """(name, milliseconds) of every kernel, for each call."""
  from jax.experimental.mosaic.gpu import profiler  # CUDA builds of JAX only

  shape = (
    compiled.out_info
    if isinstance(compiled, jax.stages.Compiled)
    else jax.eval_shape(compiled, *arguments)
  )
  result_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shape))
  batch = max(1, min(iterations, _KEPT_RESULT_BYTES // max(result_bytes, 1)))
  calls: list[list[tuple[str, float]]] = []
  while len(calls) < iterations:
    count = min(batch, iterations - len(calls))
    _, timings = profiler.measure(compiled, aggregate=False, iterations=count)(*arguments)
    if timings is None:
      return []
    calls += [timings] if count == 1 else timings
  return calls


def _wall_times_us(
  compiled: Callable[..., Any], arguments: Sequence[Any], iterations: int, cold_l2: bool
) -> list[float]:
  scratch = jnp.zeros(FLUSH_BYTES // 4, jnp.uint32) if cold_l2 else None
  flush = jax.jit(_flush)
  times_us = []
  for _ in range(iterations):
    if scratch is not None:
      jax.block_until_ready(flush(scratch))
    start = time.perf_counter()
    jax.block_until_ready(compiled(*arguments))
    times_us.append((time.perf_counter() - start) * 1e6)
  return times_us
