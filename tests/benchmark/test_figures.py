"""`--plot`: which figures rows give, and the files that become of them."""

import importlib.util
import json
import pathlib
import xml.etree.ElementTree as ElementTree

import pytest

import hw_profiles
from pallas_kernels.benchmark import flags, main, tasks
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.figures import data, draw
from pallas_kernels.benchmark.rows import Row

H200 = hw_profiles.get_profile("h200_sxm")


def row(m=1024, tile="block_m=128,block_n=128,block_k=64,num_stages=4", **fields):
  given = {
    "kernel": "matmul",
    "shape": f"m={m},k=4096,n=12288",
    "dtype": "bfloat16",
    "tile": tile,
    "profile": "h200_sxm",
    "traffic_bytes": 10**9,
    "intensity_flop_per_byte": 100.0,
    "predicted_us": 1000.0,
  }
  return Row(**(given | fields))


# --- what is drawn


def test_a_product_is_a_point_under_its_devices_roofs():
  (figure,) = data.rooflines([row(measured_us=2000.0), row(m=2048, predicted_us=None)])
  assert figure.name == "roofline-h200_sxm-bfloat16"
  assert figure.peak_flops_per_s == H200.peak_flops["bfloat16"]
  assert figure.bandwidth_bytes_per_s == {
    "DRAM": H200.dram_bandwidth_bytes_per_s,
    "L2": H200.l2_bandwidth_bytes_per_s,
  }
  # 1e9 bytes at 100 FLOP each in 1 ms, and in 2
  predicted, measured = figure.points
  assert (predicted.kind, predicted.intensity, predicted.flops_per_s) == ("predicted", 100, 1e14)
  assert (measured.kind, measured.flops_per_s) == ("measured", 5e13)
  assert predicted.tile == "128x128x64/4"
  # of gradients, too, is no time of these operations
  (figure,) = data.rooflines([row(measured_us=5.0, arguments="pallas-bench --backward")])
  assert [point.kind for point in figure.points] == ["predicted"]


def test_each_device_and_dtype_has_a_roofline_and_rows_without_products_have_none():
  rows = [
    row(),
    row(profile="ascend_910b3"),
    row(dtype="float32"),
    row(profile="v100_sxm2"),
    row(kernel="swiglu", shape="rows=1,columns=2"),
    row(intensity_flop_per_byte=None),
    row(profile=None),
  ]
  found = {figure.name: figure for figure in data.rooflines(rows)}
  assert set(found) == {
    "roofline-h200_sxm-bfloat16",
    "roofline-ascend_910b3-bfloat16",
    "roofline-h200_sxm-float32",
    "roofline-v100_sxm2-bfloat16",
  }
  assert set(found["roofline-ascend_910b3-bfloat16"].bandwidth_bytes_per_s) == {"HBM", "L2"}
  v100 = found["roofline-v100_sxm2-bfloat16"]
  assert v100.title == "v100_sxm2, bfloat16, priced as float32"
  assert v100.peak_flops_per_s == hw_profiles.get_profile("v100_sxm2").peak_flops["float32"]


def test_a_swept_size_is_a_curve_of_the_quickest_tile():
  other = "block_m=64,block_n=64,block_k=64,num_stages=4"
  rows = [
    *(row(m=m, predicted_us=float(m)) for m in (256, 128, 512)),
    *(row(m=m, predicted_us=200.0, tile=other) for m in (256, 128, 512)),
    *(
      row(m=m, profile=None, predicted_us=None, measured_us=7.0, implementation="peer:xla")
      for m in (128, 256, 512)
    ),
  ]
  figures = {figure.name: figure for figure in data.sweeps(rows)}
  figure = figures["sweep-matmul-bfloat16-m"]
  assert figure.title == "matmul k=4096,n=12288 bfloat16: the quickest tile shown"
  predicted, xla = figure.curves
  assert (predicted.label, predicted.kind) == ("h200_sxm", "predicted")
  assert (predicted.at, predicted.time_us) == ((128, 256, 512), (128.0, 200.0, 200.0))
  assert (xla.label, xla.kind, xla.time_us) == ("peer:xla", "measured", (7.0, 7.0, 7.0))


def test_a_swept_field_of_a_tile_is_a_curve_for_each_profile():
  rows = [
    row(profile=profile, tile=f"block_m=64,block_n=64,block_k={k},num_stages=2")
    for profile in ("h200_sxm", "h100_sxm")
    for k in (32, 64, 96)
  ]
  # one that does not fit has no point
  rows.append(row(tile="block_m=64,block_n=64,block_k=128,num_stages=2", predicted_us=None))
  (figure,) = data.sweeps(rows)
  assert (figure.swept, figure.title.splitlines()[1]) == (
    "block_k",
    "block_m=64,block_n=64,num_stages=2",
  )
  assert [(curve.label, curve.at) for curve in figure.curves] == [
    ("h200_sxm", (32, 64, 96)),
    ("h100_sxm", (32, 64, 96)),
  ]


def test_what_differs_in_several_ways_or_in_two_values_is_no_sweep():
  assert data.sweeps([row(m=1), row(m=2)]) == ()
  two = [row(tile=f"block_m={m},block_n={m},block_k=64") for m in (64, 128, 256)]
  assert data.sweeps(two) == ()
  assert data.sweeps([row(m=m, kernel=kernel) for m, kernel in ((1, "matmul"), (2, "x"))]) == ()
  assert data.figures([]) == ()


# --- the command


def test_a_missing_matplotlib_is_told_with_the_extra_before_any_work(monkeypatch, tmp_path, capsys):
  def find_spec(name):
    assert name == "matplotlib"

  monkeypatch.setattr(importlib.util, "find_spec", find_spec)
  monkeypatch.setattr(tasks, "perform", None)
  assert main.main(["--task=plan", f"--plot={tmp_path}/new"]) == 2
  said = 'matplotlib, which is not installed; pip install "pallas-kernels[report]"'
  assert said in capsys.readouterr().err
  assert not (tmp_path / "new").exists()


def test_the_folder_is_checked_first(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(UsageError, match=r"--plot=.*file: is no folder"):
    flags.parse(["--task=plan", f"--plot={tmp_path}/file"])
  with pytest.raises(UsageError, match=r"--plot=.*none/new: folder .* does not exist"):
    flags.parse(["--task=plan", f"--plot={tmp_path}/none/new"])
  with pytest.raises(UsageError, match="--plot is not read by --task=examples"):
    flags.parse(["--task=examples", f"--plot={tmp_path}"])


def test_the_environments_of_the_tests_have_what_the_extra_names():
  """So that what needs matplotlib or rich is tested, not skipped."""
  root = pathlib.Path(__file__).resolve().parents[2]
  pins = sorted((root / "requirements").glob("py3*.txt"))
  assert len(pins) == 3
  for path in pins:
    names = {line.partition("==")[0] for line in path.read_text(encoding="utf-8").splitlines()}
    assert {"matplotlib", "rich"} <= names, path.name


class TestDrawn:
  """With matplotlib."""

  @pytest.fixture(autouse=True)
  def _matplotlib(self):
    pytest.importorskip("matplotlib")

  def test_a_sweep_of_a_plan_becomes_files(self, tmp_path, capsys):
    arguments = [
      "--task=plan",
      "--tile=block_m=128,block_n=128,block_k=32:96:32",
      "--profile=h200_sxm,ascend_910b3",
    ]
    assert main.main([*arguments, f"--plot={tmp_path}/new", "--format=json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["rows"]) == 6
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == [
      f"{name}.{kind}"
      for name in (
        "roofline-ascend_910b3-bfloat16",
        "roofline-h200_sxm-bfloat16",
        "sweep-matmul-bfloat16-m=1024-k=4096-n=12288-block_k",
      )
      for kind in ("png", "svg")
    ]
    for name in names:
      assert f"{tmp_path}/new/{name}" in captured.err

  def test_nothing_to_draw_is_said(self, tmp_path, capsys):
    arguments = ["--task=plan", "--kernel=transpose", "--profile=rtx_pro_6000", "--format=csv"]
    assert main.main([*arguments, f"--plot={tmp_path}/new"]) == 0
    assert "nothing to draw, no product has a time and nothing is swept" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()

  def test_svg_is_text_and_the_same_each_time(self):
    (figure,) = data.rooflines([row(measured_us=2000.0)])
    drawn = draw.drawn(figure, "svg")
    assert drawn == draw.drawn(figure, "svg")
    root = ElementTree.fromstring(drawn)
    texts = {element.text for element in root.iter() if element.text and element.text.strip()}
    assert "matmul, predicted" in texts
    assert "matmul, measured" in texts
    assert "128x128x64/4" in texts
    assert any(text.startswith("DRAM 4.80 TB/s, ridge 206") for text in texts)

  def test_png_is_an_image(self, tmp_path):
    rows = [row(m=m, predicted_us=float(m) ** 2) for m in (1, 64, 4096)]
    (figure,) = data.sweeps(rows)
    (svg, png) = draw.write([figure], str(tmp_path))
    assert pathlib.Path(png).read_bytes().startswith(b"\x89PNG")
    assert ">4096<" in pathlib.Path(svg).read_text(encoding="utf-8")
