"""Many tiles through the compilers, side by side, each with a time limit.

Lowering is Python and holds the interpreter's lock, and a compiler may hang or
crash: every task runs in one of a few processes, which are ended with all that
they started, and whose temporary folder is removed.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from pallas_kernels.lowering.compile_task import Compiled, CompileTask, compile_task

# Beside the time that one compiler may take: the stages before it, on a busy machine.
_GRACE_S = 60.0
# Starting Python and JAX: 2 s; on a machine with 25 processes to two cores, 2 minutes.
_START_S = 600.0
# For a worker to end the compiler that it waits for.
_STOP_S = 2.0


def default_jobs() -> int:
  """One process a core that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _stop(*_: Any) -> None:
  raise SystemExit


def _work(connection: Connection, folder: str) -> None:
  """Answers tasks until the other end closes; runs in a process of its own."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
  signal.signal(signal.SIGTERM, _stop)
  tempfile.tempdir = folder
  # several of these may look at one GPU
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  # compilers and JAX print; the report is the parent's
  with open(os.devnull, "w", encoding="utf-8") as nowhere:
    for stream in (1, 2):
      os.dup2(nowhere.fileno(), stream)
  with contextlib.suppress(EOFError, BrokenPipeError):
    connection.send(None)  # it has started
    while True:
      connection.send(compile_task(connection.recv()))


class _Worker:
  """A process that answers one task at a time, replaced when it dies."""

  def __init__(self, run: Callable[[Connection, str], None], folder: str) -> None:
    self._run = run
    self._folder = folder
    self._process: Any = None
    self._connection: Any = None

  def _start(self) -> None:
    # a fresh interpreter: JAX has threads, which a fork would not have
    context = multiprocessing.get_context("spawn")
    self._connection, theirs = context.Pipe()
    self._process = context.Process(target=self._run, args=(theirs, self._folder), daemon=True)
    self._process.start()
    theirs.close()

  def ask(self, task: CompileTask) -> Compiled:
    reason = f"its process did not start in {_START_S:g} s"
    try:
      if self._process is None:
        self._start()
        if not self._connection.poll(_START_S):
          raise TimeoutError
        self._connection.recv()
      self._connection.send(task)
      reason = f"took longer than {task.time_limit_s:g} s"
      if self._connection.poll(task.time_limit_s + _GRACE_S):
        answer: Compiled = self._connection.recv()
        return answer
    except TimeoutError:
      pass  # the reason is there
    except (EOFError, OSError):
      self._process.join(_STOP_S)
      reason = f"its process ended by itself, with exit status {self._process.exitcode}"
    self.stop()
    return Compiled(task, "the process that compiles", "failed", reason)

  def stop(self) -> None:
    if self._process is None:
      return
    process, self._process = self._process, None
    if process.pid is None:
      # interrupted while it was being started: it ends at the end of its input
      return
    process.terminate()
    process.join(_STOP_S)
    if process.is_alive():
      process.kill()
      process.join()
    self._connection.close()


class CompilePool:
  """Processes that compile, from `with` to its end; they start when there is work."""

  def __init__(
    self, jobs: int | None = None, *, run: Callable[[Connection, str], None] = _work
  ) -> None:
    """Nothing is started yet.

    Args:
      jobs: Processes; None: one a core.
      run: What a process does; for tests.
    """
    self.jobs = default_jobs() if jobs is None else jobs
    self._run = run
    self._workers: list[_Worker] = []
    self._folder: tempfile.TemporaryDirectory[str] | None = None

  def __enter__(self) -> "CompilePool":
    """Makes the folder that the compilers work in."""
    self._folder = tempfile.TemporaryDirectory(prefix="compile-")
    self._workers = [_Worker(self._run, self._folder.name) for _ in range(self.jobs)]
    return self

  def __exit__(self, *_: object) -> None:
    """Ends every process, with what it started, and removes the folder."""
    for worker in self._workers:
      worker.stop()
    self._workers = []
    if self._folder is not None:
      self._folder.cleanup()

  def compile(
    self,
    tasks: Sequence[CompileTask],
    *,
    on_done: Callable[[Compiled], None] | None = None,
  ) -> list[Compiled]:
    """Compiles tasks side by side; the answers, in the order of the tasks.

    Args:
      tasks: What to compile. Those that share a Triton kernel should be neighbours.
      on_done: Called from another thread, one call at a time, as tasks finish.
    """
    return _serve_all(self._workers[: len(tasks)], tasks, on_done)


def _serve_all(
  workers: Sequence[_Worker],
  tasks: Sequence[CompileTask],
  on_done: Callable[[Compiled], None] | None,
) -> list[Compiled]:
  waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
  for index in range(len(tasks)):
    waiting.put(index)
  answers: list[Compiled | None] = [None] * len(tasks)
  telling = threading.Lock()
  errors: list[BaseException] = []

  def serve(worker: _Worker) -> None:
    while not errors:
      try:
        index = waiting.get_nowait()
      except queue.Empty:
        return
      try:
        answers[index] = answer = worker.ask(tasks[index])
        if on_done is not None:
          with telling:
            on_done(answer)
      except BaseException as error:  # raised below, where it is heard
        errors.append(error)

  threads = [threading.Thread(target=serve, args=(w,), daemon=True) for w in workers]
  try:
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  finally:
    # where the user interrupts, no thread takes up another task
    while not waiting.empty():
      with contextlib.suppress(queue.Empty):
        waiting.get_nowait()
  if errors:
    raise errors[0]
  return [answer for answer in answers if answer is not None]
