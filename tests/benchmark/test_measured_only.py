"""What is only measured: programs of which XLA chooses by timing compile by themselves."""

import threading

import pytest

from pallas_kernels import device
from pallas_kernels.benchmark import main, runner, timing


class Program:
  """One lowered for a GPU, as far as it is looked at."""

  def __init__(self, lowered, log):
    self.has_product = "dot_general" in lowered.as_text()
    self.text, self.log = lowered.as_text(), log

  def as_text(self):
    return self.text

  def compile(self):
    in_turn = threading.current_thread() is threading.main_thread()
    self.log.append(("a product" if self.has_product else "none", in_turn))
    return self


@pytest.mark.parametrize(
  ("arguments", "compiled"),
  [
    # a peer of which XLA may choose in other ways than by products
    (["--kernel=swiglu", "--shape=rows=8,columns=128"], [("none", False), ("none", True)]),
    (["--kernel=matmul", "--shape=m=8,k=16,n=32"], [("a product", True)] * 2),
  ],
  ids=["no product", "products"],
)
def test_products_compile_in_turn_whose_ever_they_are(arguments, compiled, monkeypatch, capsys):
  log = []
  lower = timing.lowered_for_device_timer
  measured = timing.Measurement(
    median_us=4.0, minimum_us=4.0, maximum_us=4.0, iterations=1, timer="device", cold_l2=False
  )
  monkeypatch.setattr(runner, "platform", lambda: "gpu")
  monkeypatch.setattr(timing, "measure_compiled", lambda *_, **__: measured)
  monkeypatch.setattr(
    timing, "lowered_for_device_timer", lambda *a, **how: Program(lower(*a, **how), log)
  )
  flags = ["--task=run", "--implementation=xla", "--peers=xla", "--check=none", *arguments]
  with device.abstract_gpu(device_kind="NVIDIA H200", num_cores=132):
    assert main.main(flags) == 0
  assert log == compiled
