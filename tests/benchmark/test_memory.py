"""A problem that has no room in memory is refused before anything is drawn."""

import pytest

from pallas_kernels.benchmark import flags, main, memory
from pallas_kernels.benchmark.ops.matmul import MATMUL


def workload(*arguments):
  (found,) = flags.parse(arguments).workloads
  return found


def test_needed_bytes_are_operands_result_and_copies():
  small = workload("--shape=m=10,k=20,n=30")
  # 200 + 600 elements of A and B and 300 of C, 2 B each; B once more in float32,
  # or A and B once more in float64
  assert memory.needed_bytes(small, check=False) == 2 * (200 + 600 + 300) + 4 * 600
  assert memory.needed_bytes(small, check=True) == 2 * (200 + 600 + 300) + 8 * 800


def test_float64_copies_are_slices_of_what_is_large():
  large = workload("--shape=m=16384,k=16384,n=1")
  bf16 = 2 * (16384 * 16384 + 16384 + 16384)
  assert memory.needed_bytes(large, check=True) == bf16 + 4 * 16384 * 16384


@pytest.mark.parametrize("task", ["--task=run", "--task=compare"])
def test_too_large_a_shape_is_refused_by_name_and_bytes(task, monkeypatch, capsys):
  def drawn(*_):
    raise AssertionError("drawn")

  monkeypatch.setattr(type(MATMUL), "operands", drawn)
  shape = "--shape=m=10000000,k=10000000,n=8"
  assert main.main([task, shape]) == 2
  captured = capsys.readouterr()
  assert captured.out == ""
  needed = memory.needed_bytes(workload(shape), check=True)
  assert captured.err.startswith(f"pallas-bench: {shape}: ")
  assert f"at least {needed} B" in captured.err
  assert captured.err.count("\n") == 1


def test_planning_needs_no_memory(capsys):
  arguments = ["--task=plan", "--shape=m=10000000,k=10000000,n=8", "--profile=h100_sxm"]
  assert main.main(arguments) == 0


def test_machine_that_does_not_say_refuses_nothing(monkeypatch):
  monkeypatch.setattr(memory, "installed_bytes", lambda: None)
  memory.refuse_too_large(workload("--shape=m=10000000,k=10000000,n=8"), check=True)
