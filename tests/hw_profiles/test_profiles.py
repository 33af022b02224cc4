"""Profiles: names, sources, exact devices, and files that are refused."""

import dataclasses
import json
import pickle
import shutil

import pytest

import hw_profiles as hw
from hw_profiles import registry
from hw_profiles.profile_file import read_profile
from hw_profiles.registry import DATA_DIRECTORY

NAMES = hw.list_profiles()


def test_lists_every_data_file():
  assert tuple(sorted(path.stem for path in DATA_DIRECTORY.iterdir())) == NAMES
  assert {"ascend_910b3", "h200_sxm"} <= set(NAMES)


@pytest.fixture
def data_directory(tmp_path, monkeypatch):
  """A copy of the data files that may be changed."""
  for path in DATA_DIRECTORY.glob("*.json"):
    shutil.copy(path, tmp_path)
  caches = (registry._profiles, registry._names, registry._kinds)
  monkeypatch.setattr(registry, "DATA_DIRECTORY", tmp_path)
  for cache in caches:
    cache.cache_clear()
  yield tmp_path
  monkeypatch.undo()
  for cache in caches:
    cache.cache_clear()


def _add_copy(directory, name, **changes):
  document = json.loads((directory / "h100_sxm.json").read_text())
  document |= {"name": name, "aliases": [], "device_kinds": []} | changes
  (directory / f"{name}.json").write_text(json.dumps(document))


def test_a_file_added_is_a_profile(data_directory):
  _add_copy(data_directory, "another")
  assert hw.list_profiles() == tuple(sorted((*NAMES, "another")))
  assert hw.get_profile("another").sm_count == hw.get_profile("h100").sm_count


# in the order of their names the copy comes before and after the original
@pytest.mark.parametrize("name", ["a_copy", "z_copy"])
def test_a_copied_name_is_blamed_on_the_file_that_has_it(data_directory, name):
  _add_copy(data_directory, name, aliases=["H200 SXM"])
  with pytest.raises(ValueError, match=rf"^{name}\.json: aliases: 'H200 SXM' is the name of h200"):
    hw.get_profile("h100")
  for cache in (registry._profiles, registry._names):
    cache.cache_clear()
  _add_copy(data_directory, name, aliases=["h100"])
  with pytest.raises(ValueError, match=rf"(?=.*{name}\.json)(?=.*h100_sxm\.json).*is in both"):
    hw.get_profile("h100")


def test_a_copied_device_kind_names_both_files(data_directory):
  _add_copy(data_directory, "a_copy", device_kinds=["NVIDIA  H200"])
  with pytest.raises(ValueError, match=r"^a_copy\.json and h200_sxm\.json: device_kinds"):
    hw.profile_for_device_kind("NVIDIA H200")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_a_broken_file_is_blamed_whatever_profile_is_asked_for(data_directory, content):
  (data_directory / "broken.json").write_bytes(content)
  with pytest.raises(ValueError, match=r"^broken\.json: not JSON"):
    hw.get_profile("h100")


@pytest.mark.parametrize(
  ("name", "expected"),
  [
    ("h200", "h200_sxm"),
    ("H100", "h100_sxm"),
    ("H100-SXM", "h100_sxm"),
    ("h100 sxm", "h100_sxm"),
    ("910b3", "ascend_910b3"),
    ("Ascend_910B3", "ascend_910b3"),
    ("950PR", "ascend_950pr"),
    ("RTX_PRO_6000", "rtx_pro_6000"),
  ],
)
def test_aliases_and_case(name, expected):
  assert hw.get_profile(name).name == expected


def test_unknown_name_lists_all_and_names_the_closest():
  with pytest.raises(ValueError, match=r"name='h1000'.*h100_sxm, h200_sxm.*closest: h100_sxm"):
    hw.get_profile("h1000")
  with pytest.raises(ValueError, match="closest: ascend_910b3"):
    hw.get_profile("910b33")


@pytest.mark.parametrize("name", [None, 9, b"h100"])
def test_name_must_be_a_string(name):
  with pytest.raises(ValueError, match="expected a string"):
    hw.get_profile(name)


@pytest.mark.parametrize(
  ("device_kind", "expected"),
  [
    ("NVIDIA H200", "h200_sxm"),
    ("NVIDIA H100 80GB HBM3", "h100_sxm"),
    ("Tesla V100-SXM2-16GB", "v100_sxm2"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"),
    ("NVIDIA H200 MIG 1g.18gb", None),
    ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None),
    ("NVIDIA H100 PCIe", None),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None),
    ("NVIDIA Graphics Device", None),
    ("cpu", None),
    ("", None),
  ],
)
def test_device_kind_matches_the_exact_device_only(device_kind, expected):
  profile = hw.profile_for_device_kind(device_kind)
  assert (profile.name if profile else None) == expected


@pytest.mark.parametrize("device_kind", [None, 9, b"NVIDIA H200"])
def test_device_kind_must_be_a_string(device_kind):
  with pytest.raises(ValueError, match=r"device_kind=.*expected a string"):
    hw.profile_for_device_kind(device_kind)


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_source(name):
  profile = hw.get_profile(name)
  for field in dataclasses.fields(profile):
    value = getattr(profile, field.name)
    if isinstance(value, int | float):
      assert profile.source(field.name).source
      assert profile.source(field.name).value == value
  for dtype, value in profile.peak_flops.items():
    field = "peak_flops" if profile.vendor == "nvidia" else "cube_macs_per_cycle"
    assert profile.source(f"{field}.{dtype}").source
    assert value > 0


def test_source_of_a_changed_value_is_the_caller():
  profile = dataclasses.replace(hw.get_profile("h100"), dram_bandwidth_bytes_per_s=1e12)
  source = profile.source("dram_bandwidth_bytes_per_s")
  assert source.source == "set by the caller"
  assert "3350000000000" in source.note


def test_source_of_an_unknown_field_names_the_known_ones():
  with pytest.raises(ValueError, match=r"field='bandwidth'.*dram_bandwidth_bytes_per_s"):
    hw.get_profile("h100").source("bandwidth")


@pytest.mark.parametrize("name", NAMES)
def test_profiles_are_hashable_and_cannot_change(name):
  profile = hw.get_profile(name)
  assert hash(profile) == hash(hw.get_profile(name))
  with pytest.raises(dataclasses.FrozenInstanceError):
    profile.name = "other"
  with pytest.raises(TypeError, match="cannot be changed"):
    profile.sources["sm_count"] = None
  assert pickle.loads(pickle.dumps(profile)) == profile


def test_npu_peak_follows_from_cores_and_clock():
  npu = hw.get_profile("910b3")
  # 20 cores x 4096 multiply-accumulates x 2 x 1.8 GHz
  assert npu.peak_flops["bfloat16"] == pytest.approx(294.9e12, rel=1e-3)
  assert npu.peak_flops["float32"] == npu.peak_flops["bfloat16"] / 4


def test_ascend_generations_differ_where_the_epilogue_does():
  assert not hw.get_profile("910b3").has_l0c_to_ub
  assert hw.get_profile("950pr").has_l0c_to_ub


def _document():
  return json.loads((DATA_DIRECTORY / "h100_sxm.json").read_text())


def _change(path, value):
  def change(document):
    *parents, last = path
    for parent in parents:
      document = document[parent]
    if value is None:
      del document[last]
    else:
      document[last] = value

  return change


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (_change(["facts", "sm_count"], None), "sm_count: missing"),
    (_change(["facts", "sm_count", "source"], None), "sm_count: source missing"),
    (_change(["facts", "sm_count", "confidence"], None), "sm_count: confidence missing"),
    (_change(["facts", "sm_count", "confidence"], "sure"), "sm_count.confidence: 'sure'"),
    (_change(["facts", "sm_count", "source"], " "), "sm_count.source: ' '"),
    (_change(["facts", "sm_count", "value"], "132"), "sm_count: value '132': expected an integer"),
    (_change(["facts", "sm_count", "value"], 132.5), "sm_count: value 132.5: expected an integer"),
    (_change(["facts", "sm_count", "value"], -1), "sm_count: value -1: expected a positive"),
    (_change(["facts", "sm_count", "value"], 0), "sm_count: value 0: expected a positive"),
    (_change(["facts", "sm_count", "units"], "SM"), "sm_count: unknown key 'units'"),
    (_change(["facts", "sms"], {"value": 1}), "sms: GpuProfile has no such field"),
    (_change(["facts", "has_tma", "value"], 1), "has_tma: value 1: expected true or false"),
    (
      _change(["facts", "compute_capability", "value"], "9.0"),
      "compute_capability: value '9.0': expected two integers",
    ),
    (_change(["facts", "peak_flops"], {}), "peak_flops: {}"),
    (
      _change(["facts", "peak_flops", "bfloat16", "source"], None),
      "peak_flops.bfloat16: source missing",
    ),
    (
      _change(["facts", "sustained_tensor_fraction", "value"], 1.2),
      "sustained_tensor_fraction: value 1.2: expected a fraction",
    ),
    (_change(["facts", "clock_hz", "value"], float("nan")), "clock_hz: value nan: expected a pos"),
    (_change(["vendor"], "amd"), "vendor: 'amd'"),
    (_change(["vendor"], ["nvidia"]), "vendor: ['nvidia']"),
    (_change(["title"], None), "title: missing"),
    (_change(["alias"], []), "alias: unknown field"),
    (_change(["aliases"], "h100"), "aliases: 'h100'"),
    (_change(["model_error"], {"median": 1}), "model_error: unknown field"),
  ],
)
def test_malformed_file_is_refused_by_file_and_field(tmp_path, change, message):
  document = _document()
  change(document)
  path = tmp_path / "broken.json"
  path.write_text(json.dumps(document))
  with pytest.raises(ValueError) as raised:  # noqa: PT011 (the text is checked below)
    read_profile(path)
  assert str(raised.value).startswith(f"broken.json: {message}")


def test_file_that_is_not_json_is_refused(tmp_path):
  path = tmp_path / "broken.json"
  path.write_text("{")
  with pytest.raises(ValueError, match=r"broken\.json: not JSON"):
    read_profile(path)
