"""Kernel tests: which implementations, on which operands, against which bound."""

from collections.abc import Callable, Iterator

import compiled_ops
import jax
import pytest

from pallas_kernels import compat
from pallas_kernels.rowwise import implementations

ON_CPU = ["xla", "interpret"]
ON_GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ("mosaic_gpu", "triton")]
HOPPER = ["mosaic_gpu_interpret", pytest.param("mosaic_gpu", marks=pytest.mark.gpu)]


@pytest.fixture(params=[*ON_CPU, *ON_GPU, pytest.param("xla", id="xla-gpu", marks=pytest.mark.gpu)])
def implementation(request: pytest.FixtureRequest) -> str:
  """Each implementation that is quick here; the Mosaic interpreter has tests of its own."""
  if request.node.get_closest_marker("gpu") is None and jax.default_backend() == "gpu":
    pytest.skip("the CPU half of the suite")
  return request.param


@pytest.fixture(params=HOPPER)
def hopper(request: pytest.FixtureRequest) -> str:
  """The Hopper kernel: interpreted on a CPU, compiled on a GPU."""
  if request.param == "mosaic_gpu_interpret" and jax.default_backend() == "gpu":
    pytest.skip("compiled on this machine")
  return request.param


@pytest.fixture(autouse=True)
def _clean_interpreter() -> Iterator[None]:
  """A kernel that raises inside the Mosaic interpreter leaves state behind."""
  compiled_ops.forget()
  yield
  if jax.default_backend() == "cpu":
    compat.reset_gpu_interpreter()


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
  """Makes the Mosaic interpreter look for races; call it to hear whether it found any."""
  params = compat.gpu_interpret_params
  monkeypatch.setattr(compat, "gpu_interpret_params", lambda: params(detect_races=True))
  return lambda: jax.default_backend() == "cpu" and compat.races_found()


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
  """Makes a CPU one of two cores, so that a block of a row-wise Hopper kernel has several rows."""
  if jax.default_backend() == "cpu":
    monkeypatch.setattr(implementations, "cores_of", lambda _: 2)
