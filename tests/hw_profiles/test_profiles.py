"""Profiles: names, sources, exact devices, and files that are refused."""

import contextlib
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
  assert set(NAMES) >= {
    "v100_sxm2",
    "a100_sxm4_80gb",
    "h100_sxm",
    "h200_sxm",
    "b200",
    "rtx_pro_6000",
    "rtx_4090",
    "ascend_910b1",
    "ascend_910b2",
    "ascend_910b3",
    "ascend_910b4",
    "ascend_910c_die",
    "ascend_950pr",
    "ascend_950dt",
  }


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
    ("NVIDIA H200", "h200_sxm"),
    ("nvidia h100 80gb hbm3", "h100_sxm"),
    ("Ascend910B3", "ascend_910b3"),
    ("910B1", "ascend_910b1"),
    ("910b2", "ascend_910b2"),
    ("910b4", "ascend_910b4"),
    ("910C", "ascend_910c_die"),
    ("950dt", "ascend_950dt"),
    ("A100", "a100_sxm4_80gb"),
    ("4090", "rtx_4090"),
    ("NVIDIA GeForce RTX 4090", "rtx_4090"),
    ("B200", "b200"),
    ("V100", "v100_sxm2"),
  ],
)
def test_aliases_and_case(name, expected):
  assert hw.get_profile(name).name == expected


def test_unknown_name_lists_all_and_names_the_closest():
  with pytest.raises(ValueError, match=r"name='h1000'.*h100_sxm, h200_sxm.*closest: h100_sxm"):
    hw.get_profile("h1000")
  with pytest.raises(ValueError, match="closest: ascend_910b3"):
    hw.get_profile("910b33")
  with pytest.raises(ValueError, match=r"^gpu='h1000': no such profile.*closest: h100_sxm"):
    hw.residency("h1000", threads_per_block=1, registers_per_thread=1, shared_bytes_per_block=0)


@pytest.mark.parametrize("name", ["hopper", "nonesuch", ""])
def test_a_name_like_no_other_is_not_guessed_at(name):
  with pytest.raises(ValueError, match=rf"name='{name}': .* expected one of (.*)$") as refusal:
    hw.get_profile(name)
  assert str(refusal.value).endswith(", ".join(hw.list_profiles()))


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
    ("NVIDIA H100 NVL", None),
    ("NVIDIA A100-SXM4-80GB", "a100_sxm4_80gb"),
    ("NVIDIA A100-SXM4-40GB", None),
    ("NVIDIA B200", "b200"),
    ("NVIDIA GeForce RTX 4090", "rtx_4090"),
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
  assert npu.peak_flops["bfloat16"] == 20 * 4096 * 2 * 1.8e9
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


def _with(field, entry):
  document = _document()
  document["facts"][field] = entry
  return document


@pytest.mark.parametrize(
  ("document", "message"),
  [
    (
      _with("launch_overhead_us", {"value": None, "source": "none", "confidence": "high"}),
      "launch_overhead_us.confidence: 'high': expected 'unknown' of null",
    ),
    (
      _with("launch_overhead_us", {"value": 5, "source": "none", "confidence": "unknown"}),
      "launch_overhead_us: value 5: expected null",
    ),
    (
      _with("launch_overhead_us", {"value": None, "source": " ", "confidence": "unknown"}),
      "launch_overhead_us.source: ' '",
    ),
    (
      _with("sm_count", {"value": None, "source": "none", "confidence": "unknown"}),
      "sm_count: value None: expected null",
    ),
    (
      _with("sm_count", {"value": None, "source": "none", "confidence": "high"}),
      "sm_count: value None: expected an integer",
    ),
    (
      _with("latency_cycles", {"l2": {"value": 200, "source": "x", "confidence": "low"}}),
      "latency_cycles.l2: value 200: expected two integers",
    ),
  ],
)
def test_an_unknown_number_is_null_with_a_reason(tmp_path, document, message):
  path = tmp_path / "broken.json"
  path.write_text(json.dumps(document))
  with pytest.raises(ValueError) as raised:  # noqa: PT011 (the text is checked below)
    read_profile(path)
  assert str(raised.value).startswith(f"broken.json: {message}")


def test_an_unknown_number_is_none_and_says_why(tmp_path):
  reason = "nobody measured it"
  path = tmp_path / "some.json"
  entry = {"value": None, "source": reason, "confidence": "unknown"}
  path.write_text(json.dumps(_with("launch_overhead_us", entry)))
  profile = read_profile(path)
  assert profile.launch_overhead_us is None
  assert "launch_overhead_us" in profile.unknown()
  assert profile.source("launch_overhead_us").source == reason
  known = dataclasses.replace(profile, launch_overhead_us=4.0)
  assert "launch_overhead_us" not in known.unknown()
  assert known.source("launch_overhead_us").source == "set by the caller"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_known_has_a_reason(name):
  profile = hw.get_profile(name)
  for field in profile.unknown():
    source = profile.source(field)
    assert (source.value, source.confidence) == (None, "unknown")
    assert len(source.source.split()) > 3
  # nothing is unknown that some source of the device gives
  assert ("unknown" in {source.confidence for source in profile.sources.values()}) == bool(
    profile.unknown()
  )


@pytest.mark.parametrize("name", NAMES)
def test_the_planner_says_what_it_did_not_charge_for(name):
  profile = hw.get_profile(name)
  plan = hw.plan(hw.MatmulProblem(512, 512, 512, dtype="float16"), _TILE, profile)
  said = [text for text in plan.assumptions if text.startswith("not known of")]
  priced = {
    "l2_bandwidth_bytes_per_s",
    "launch_overhead_us",
    "sustained_dram_fraction",
    "sustained_hbm_fraction",
  }.intersection(profile.unknown())
  assert len(said) == bool(priced)
  for field in priced:
    assert field in said[0]
    assert profile.source(field).source in said[0]


_TILE = hw.MatmulConfig(128, 128, 64, num_stages=2)
GPUS = [name for name in NAMES if hw.get_profile(name).vendor == "nvidia"]
NPUS = [name for name in NAMES if hw.get_profile(name).vendor == "huawei"]
FFN = hw.MatmulProblem(1024, 4096, 12288, dtype="float16")


@pytest.mark.parametrize("name", GPUS)
def test_a_matmul_is_planned_as_the_device_can_run_it(name):
  gpu = hw.get_profile(name)
  hopper = gpu.compute_capability == (9, 0)
  best = hw.rank(FFN, gpu, top=1)[0]
  of_device = {"b200": "tcgen05", "h100_sxm": "warp_specialized", "h200_sxm": "warp_specialized"}
  assert best.schedule == of_device.get(name, "multistage")
  assert gpu.has_wgmma == hopper
  for buffer in best.buffers:
    assert buffer.needed_bytes <= buffer.available_bytes
  # the arithmetic at its peak is a floor, and twice the slower of the rooflines a ceiling
  floor_us = FFN.flops / gpu.peak_flops["float16"] * 1e6
  assert floor_us < best.predicted_us
  assert best.predicted_us < 2 * floor_us
  with pytest.raises(hw.InfeasibleTileError, match=r"needs wgmma") if not hopper else _nothing():
    hw.plan(FFN, _TILE, gpu, schedule="warp_specialized").check()


def _nothing():
  return contextlib.nullcontext()


def test_what_mma_sync_reaches_beside_tcgen05_is_said():
  for name in GPUS:
    said = hw.plan(FFN, _TILE, name, schedule="multistage").assumptions
    assert any("of the tcgen05 rate (calibrated)" in x for x in said) == (name == "b200")


@pytest.mark.parametrize("name", NPUS)
def test_an_ascend_matmul_is_bound_by_what_the_cores_share(name):
  npu = hw.get_profile(name)
  best = hw.rank(FFN, npu, top=1)[0]
  floor_us = FFN.flops / npu.peak_flops["float16"] * 1e6
  assert floor_us < best.predicted_us < 2 * floor_us
  # decoding reads B once: HBM sets the time
  decode = hw.MatmulProblem(1, 4096, 12288, dtype="float16")
  least_us = decode.once_through_bytes / npu.hbm_bandwidth_bytes_per_s * 1e6
  assert hw.rank(decode, npu, top=1)[0].predicted_us > least_us


def test_more_bandwidth_decodes_faster():
  decode = hw.MatmulProblem(1, 4096, 12288, dtype="float16")
  times = {name: hw.rank(decode, name, top=1)[0].predicted_us for name in NPUS}
  assert times["ascend_950dt"] < times["ascend_950pr"]
  assert times["ascend_910b4"] > times["ascend_910b3"]


# What the Ascend compilers embed for each target (dlti.target_system_spec of ascendnpu-ir 1.2.0).
_EMBEDDED = {
  "ascend_910b1": (24, 48, 192, 128),
  "ascend_910b2": (24, 48, 192, 128),
  "ascend_910b3": (20, 40, 192, 128),
  "ascend_910b4": (20, 40, 192, 128),
  "ascend_910c_die": (24, 48, 192, 128),
  "ascend_950pr": (32, 64, 248, 256),
  "ascend_950dt": (32, 64, 248, 256),
}


@pytest.mark.parametrize("name", NPUS)
def test_ascend_buffers_are_what_the_compilers_embed(name):
  npu = hw.get_profile(name)
  aic, aiv, ub_kib, l0c_kib = _EMBEDDED[name]
  assert (npu.aic_count, npu.aiv_count) == (aic, aiv)
  assert npu.vector_cores_per_cube_core == 2
  assert (npu.l0a_bytes, npu.l0b_bytes, npu.l1_bytes) == (64 * 1024, 64 * 1024, 512 * 1024)
  assert (npu.ub_bytes, npu.l0c_bytes) == (ub_kib * 1024, l0c_kib * 1024)
  assert (npu.ub_alignment_bytes, npu.l1_alignment_bytes) == (32, 32)
  assert (npu.fractal_rows, npu.c0_bytes) == (16, 32)
  # a fractal of 16-bit elements is 16 x 16, 512 B
  assert npu.l0_alignment_bytes == npu.fractal_rows * npu.c0_bytes
  # usable UB leaves at most 8 KiB of the banks to the system
  banks = npu.ub_bank_groups * npu.ub_banks_per_group * npu.ub_bank_bytes
  assert 0 <= banks - npu.ub_bytes <= 8 * 1024


@pytest.mark.parametrize("name", NPUS)
def test_the_architecture_decides_the_paths(name):
  npu = hw.get_profile(name)
  new = npu.architecture == 3510
  assert npu.architecture == (3510 if "950" in name else 2201)
  assert npu.has_l0c_to_ub == (npu.ub_to_l1_bytes_per_cycle > 0) == new
  assert npu.gm_alignment_bytes == (128 if new else 512)
  assert ("float8_e4m3fn" in npu.cube_macs_per_cycle) == new
  assert npu.l1_to_l0b_bytes_per_cycle == (256 if new else 128)


def test_gpus_agree_with_their_arithmetic():
  """Peak / (SMs · clock) is a whole power of two of FLOP a cycle, for tensor cores of one SM."""
  per_cycle = {
    "v100_sxm2": 1024,
    "a100_sxm4_80gb": 2048,
    "h100_sxm": 4096,
    "h200_sxm": 4096,
    "b200": 8192,
    "rtx_pro_6000": 1024,
    "rtx_4090": 512,
  }
  assert set(per_cycle) == set(GPUS)
  for name, expected in per_cycle.items():
    gpu = hw.get_profile(name)
    found = gpu.peak_flops["float16"] / (gpu.sm_count * gpu.clock_hz)
    # datasheets round: 2250 TFLOP/s of a B200 are 2225 by its clock
    assert abs(found / expected - 1) < 0.012


def test_tensor_memory_is_blackwell_datacentre_alone():
  have = {name for name in GPUS if hw.get_profile(name).tensor_memory_bytes_per_sm}
  assert have == {"b200"}


# --- tiers


def test_tiers_of_the_v100_are_those_of_the_tutorial():
  tiers = hw.memory_tiers("v100")
  assert list(tiers) == ["registers", "shared", "l2", "dram"]
  bandwidths = [tier.bandwidth_bytes_per_s for tier in tiers.values()]
  assert bandwidths == [20e12, 12e12, 2e12, 898e9]
  assert [tier.latency_cycles for tier in tiers.values()] == [
    (0, 0),
    (20, 30),
    (200, 200),
    (300, 400),
  ]
  assert "cannot be the ceiling" in tiers["registers"].source.note


@pytest.mark.parametrize("name", NAMES)
def test_tiers_get_faster_towards_the_cores(name):
  profile = hw.get_profile(name)
  tiers = hw.memory_tiers(profile)
  assert tiers["dram" if name in GPUS else "hbm"].bandwidth_bytes_per_s == (
    profile.memory_bandwidth_bytes_per_s
  )
  if name in GPUS:
    known = [tier.bandwidth_bytes_per_s for tier in tiers.values() if tier.bandwidth_bytes_per_s]
    assert known == sorted(known, reverse=True)
  else:
    assert tiers["l0a"].bandwidth_bytes_per_s > tiers["hbm"].bandwidth_bytes_per_s
    assert tiers["l1"].bandwidth_bytes_per_s == profile.l2_bandwidth_bytes_per_s


def test_shared_memory_is_its_banks_where_no_source_quotes_it():
  h100 = hw.get_profile("h100")
  assert hw.memory_tiers(h100)["shared"].bandwidth_bytes_per_s == 128 * 132 * 1.83e9
  slower = dataclasses.replace(h100, clock_hz=1e9)
  assert hw.memory_tiers(slower)["shared"].bandwidth_bytes_per_s == 128 * 132 * 1e9


def test_a_roofline_of_one_tier():
  # an 8 x 8 outer product takes 2 FLOP a byte of shared memory: 12 TB/s feed 24 TFLOP/s
  outer = hw.roofline("v100", flops=2e9, bytes=1e9, dtype="float32", tier="shared")
  assert outer.ridge == pytest.approx(15.7 / 12)
  assert (outer.bound, outer.peak_fraction) == ("compute", 1.0)
  # an inner product takes 0.25: 3 TFLOP/s
  inner = hw.roofline("v100", flops=0.25e9, bytes=1e9, dtype="float32", tier="shared")
  assert inner.bound == "memory"
  assert inner.peak_fraction * 15.7e12 == pytest.approx(3e12)
  whole = hw.roofline("v100", flops=1e9, bytes=1e9, dtype="float32")
  assert whole == hw.roofline("v100", flops=1e9, bytes=1e9, dtype="float32", tier="dram")


@pytest.mark.parametrize(
  ("profile", "tier", "message"),
  [
    ("h100", "l3", r"tier='l3': h100_sxm has no such tier; expected one of registers, shared, l2"),
    ("910b3", "dram", r"expected one of l0a, l0b, l0c, ub, l1, hbm"),
    ("h100", 2, r"tier=2"),
    ("b200", "l2", r"tier='l2': its bandwidth on b200 is not known \(no source.*shared, dram are"),
  ],
)
def test_a_tier_that_is_not_there_is_named(profile, tier, message):
  with pytest.raises(ValueError, match=message):
    hw.roofline(profile, flops=1, bytes=1, dtype="float16", tier=tier)


def test_the_tier_that_takes_longest_binds():
  plan = hw.plan(FFN, hw.MatmulConfig(128, 256, 64, num_stages=4), "h100")
  found = hw.tier_roofline(
    "h100", flops=FFN.flops, bytes_by_tier=plan.traffic_bytes, dtype="float16"
  )
  assert set(found.tiers) == set(plan.traffic_bytes)
  assert found.bound == "compute"
  assert found.time_us == pytest.approx(FFN.flops / 989.4e12 * 1e6)
  moved = {"shared": 1e9, "l2": 1e9, "dram": 1e9}
  slow = hw.tier_roofline("h100", flops=1e9, bytes_by_tier=moved, dtype="float16")
  assert slow.bound == "dram"
  assert slow.time_us == slow.tiers["dram"].time_us == pytest.approx(1e9 / 3.35e12 * 1e6)
  # an arithmetic that takes longest is "compute" even where some other tier would bind less
  assert max(tier.time_us for tier in slow.tiers.values()) == slow.time_us


@pytest.mark.parametrize("moved", [{}, None, 5])
def test_tiers_must_be_a_mapping(moved):
  with pytest.raises(ValueError, match="bytes_by_tier"):
    hw.tier_roofline("h100", flops=1, bytes_by_tier=moved, dtype="float16")


def test_file_that_is_not_json_is_refused(tmp_path):
  path = tmp_path / "broken.json"
  path.write_text("{")
  with pytest.raises(ValueError, match=r"broken\.json: not JSON"):
    read_profile(path)
