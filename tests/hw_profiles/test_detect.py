"""The profile of the device that JAX runs on."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import hw_profiles as hw


def _device(kind, platform="gpu"):
  return SimpleNamespace(device_kind=kind, platform=platform)


@pytest.mark.parametrize(
  ("kind", "expected"),
  [
    ("NVIDIA H200", "h200_sxm"),
    ("NVIDIA H100 80GB HBM3", "h100_sxm"),
    ("NVIDIA A100-SXM4-80GB", "a100_sxm4_80gb"),
    ("NVIDIA B200", "b200"),
    ("NVIDIA GeForce RTX 4090", "rtx_4090"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
    ("Tesla V100-SXM2-16GB", "v100_sxm2"),
    ("Ascend910B3", "ascend_910b3"),
    ("Ascend910B4", "ascend_910b4"),
  ],
)
def test_the_profile_of_exactly_this_device(kind, expected):
  assert hw.detect(_device(kind)).name == expected
  # the platform is said, not needed
  assert hw.detect(SimpleNamespace(device_kind=kind)).name == expected


@pytest.mark.parametrize(
  ("kind", "relative"),
  [
    ("NVIDIA H100 PCIe", "h100_sxm"),
    ("NVIDIA H100 NVL", "h100_sxm"),
    ("NVIDIA A100-SXM4-40GB", "a100_sxm4_80gb"),
    ("NVIDIA A100 80GB PCIe", "a100_sxm4_80gb"),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx_4090"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx_pro_6000"),
    ("Tesla V100-PCIE-16GB", "v100_sxm2"),
  ],
)
def test_a_sibling_is_another_device(kind, relative):
  with pytest.raises(ValueError, match=f"device_kind='{kind}'.*no profile is of exactly") as raised:
    hw.detect(_device(kind))
  assert f"get_profile('{relative}')" in str(raised.value)


@pytest.mark.parametrize(
  ("kind", "card", "size"),
  [
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100_sxm", "1g.10gb"),
    ("NVIDIA H200 MIG 1g.18gb", "h200_sxm", "1g.18gb"),
    ("NVIDIA A100-SXM4-80GB MIG 1g.10gb+me", "a100_sxm4_80gb", r"1g.10gb\+me"),
  ],
)
def test_a_mig_slice_says_what_to_do(kind, card, size):
  with pytest.raises(ValueError, match=rf"a MIG slice \({size}\).*of its card {card}.*sm_count"):
    hw.detect(_device(kind))


def test_a_mig_slice_of_an_unknown_card():
  with pytest.raises(ValueError, match=r"a MIG slice \(1g\.5gb\) has no profile, nor has its card"):
    hw.detect(_device("NVIDIA L4 MIG 1g.5gb"))


@pytest.mark.parametrize(
  ("kind", "platform"),
  [
    ("cpu", "cpu"),
    ("TPU v5 lite", "tpu"),
    ("NVIDIA GH200 480GB", "gpu"),
    ("NVIDIA GB200", "gpu"),
    ("NVIDIA Graphics Device", "gpu"),
    ("Ascend910_9392", "npu"),
    ("", "cpu"),
  ],
)
def test_an_unknown_device_lists_the_profiles(kind, platform):
  with pytest.raises(ValueError, match=rf"platform '{platform}'.*no profile is of this") as raised:
    hw.detect(_device(kind, platform))
  assert ", ".join(hw.list_profiles()) in str(raised.value)


@pytest.mark.parametrize("device", ["NVIDIA H200", 0, SimpleNamespace(device_kind=9)])
def test_something_else_than_a_device_is_refused(device):
  with pytest.raises(ValueError, match=r"device=.*expected an object with a device_kind"):
    hw.detect(device)


@pytest.mark.parametrize("kind", ["NVIDIA H200", "cpu"])
def test_without_a_device_jax_is_asked(monkeypatch, kind):
  jax = SimpleNamespace(devices=lambda: [_device(kind), _device("NVIDIA H100 80GB HBM3")])
  monkeypatch.setitem(sys.modules, "jax", jax)
  if kind == "cpu":
    with pytest.raises(ValueError, match="device_kind='cpu'"):
      hw.detect()
  else:
    assert hw.detect().name == "h200_sxm"


def test_without_jax_the_answer_is_clear(monkeypatch):
  monkeypatch.setitem(sys.modules, "jax", None)
  with pytest.raises(ValueError, match=r"device=None: JAX cannot be imported.*get_profile"):
    hw.detect()


def test_a_backend_that_fails_is_said(monkeypatch):
  def devices():
    raise RuntimeError("no backend")

  monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(devices=devices))
  with pytest.raises(ValueError, match=r"device=None: JAX has no device \(no backend\)"):
    hw.detect()


def test_jax_is_imported_by_the_call_alone():
  code = (
    "import sys, types, hw_profiles\n"
    "hw_profiles.detect(types.SimpleNamespace(device_kind='NVIDIA H200'))\n"
    "assert 'jax' not in sys.modules"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
