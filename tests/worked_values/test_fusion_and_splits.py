"""Fusion: bytes moved, peaks, split reductions and quantised projections."""

import golden
import pytest

import hw_profiles as hw

KIB, MIB = 1024, 1024**2
SIZES = {"rows": 1024, "width": 12288}


def chain(inputs, quantized="int8"):
  return hw.swiglu_chain(
    rows=inputs.get("rows", SIZES["rows"]),
    width=inputs.get("width", SIZES["width"]),
    quantized_dtype=quantized,
  )


def cut(inputs):
  """The text's "12|3": a digit an operation, a bar where a kernel ends."""
  return tuple(len(group) for group in inputs["fuse"].split("|"))


def three_steps(inputs):
  return hw.fusion_traffic(chain(inputs), partition=cut(inputs))


def two_steps(inputs, fuse):
  return hw.fusion_traffic(chain(inputs, None), partition=(2,) if fuse else (1, 1)).total_bytes


def rms_norm(inputs, num_splits, **options):
  return hw.split_reduction_traffic(
    rows=inputs.get("rows", 1024),
    width=inputs.get("w", 4096),
    num_splits=num_splits,
    dtype="bfloat16",
    **options,
  )


def projection(inputs, fuse=False):
  return hw.quantized_projection_traffic(
    m=inputs.get("rows", 4096),
    k=inputs["K"],
    n=inputs.get("N", 1536),
    block_m=inputs.get("tm", 128),
    block_n=inputs.get("tn", 128),
    fuse=fuse,
  )


EX_5_8 = {"rows": 4096, "K": 4096, "N": 1536, "tm": 128, "tn": 128}


def chain_total(inputs):
  return three_steps(inputs).total_bytes / MIB


def chain_peak(inputs):
  return three_steps(inputs).memory.peak_bytes / MIB


def drop(what):
  separate, fused = three_steps({"fuse": "1|2|3"}), three_steps({"fuse": "123"})
  return (what(separate) - what(fused)) / MIB


COMPUTED = {
  "s004.rms.tasks": lambda i: rms_norm(i, i["seg"]).groups,
  "s004.rms.seg_width": lambda i: rms_norm(i, i["seg"]).split_width,
  "s004.rms.partials": lambda i: rms_norm({"rows": i["n"] // 8}, 8).partials_bytes / KIB,
  "s004.rms.scales": lambda i: rms_norm({"rows": i["n"]}, 8).scales_bytes / KIB,
  "s004.rms.traffic_fused": lambda i: rms_norm(i, 1).total_bytes / MIB,
  "s004.rms.traffic_split": lambda i: (
    rms_norm(i, i["seg"], scale_reads_per_row=1).total_bytes / MIB
  ),
  "s004.rms.traffic_split_per_segment_scale": lambda i: rms_norm(i, i["seg"]).total_bytes / MIB,
  "s004.rms.temp_row": lambda i: rms_norm(i, 1).scratch_bytes_per_group / KIB,
  "s004.rms.temp_seg": lambda i: rms_norm({"w": 8 * i["w"]}, 8).scratch_bytes_per_group / KIB,
  "s004.ex5-4.G": lambda i: chain({"rows": i["r"], "width": i["c"]}).tensor("G").bytes / MIB,
  "s004.ex5-4.separate": lambda i: two_steps(i, i["fuse"]) / MIB,
  "s004.ex5-4.fused": lambda i: two_steps(i, i["fuse"]) / MIB,
  "s004.ex5-4.saved": lambda i: (two_steps({}, False) - two_steps({}, True)) / MIB,
  "s004.ex5-4.time_ratio": lambda i: hw.memory_time_ratio(bytes=i["a"], baseline_bytes=i["b"]),
  "s004.ex5-4.speedup": lambda i: hw.memory_time_ratio(bytes=i["a"], baseline_bytes=i["b"]),
  "s004.ex5-4.measured_speedup": lambda i: (
    hw.time_change(before_us=i["a"], after_us=i["b"]).speedup
  ),
  "s004.ex5-4.measured_implied_bw_separate": lambda i: (
    hw.achieved_bandwidth("rtx_pro_6000", bytes=i["mib"] * MIB, measured_us=i["us"]).bytes_per_s
    / 1e12
  ),
  "s004.ex5-4.dram_model_fused_us": lambda i: (
    hw.achieved_bandwidth("rtx_pro_6000", bytes=i["mib"] * MIB, measured_us=7.68).memory_time_us
  ),
  "s004.ex5-4.quant_extra": lambda i: three_steps({"fuse": "1|2|3"}).groups[2].total_bytes / MIB,
  "s004.ex5-4.chain[1|2|3]": chain_total,
  "s004.ex5-4.chain[12|3]": chain_total,
  "s004.ex5-4.chain[1|23]": chain_total,
  "s004.ex5-4.chain[123]": chain_total,
  "s004.ex5-4.peak[1|2|3]": chain_peak,
  "s004.ex5-4.peak[12|3]": chain_peak,
  "s004.ex5-4.peak[1|23]": chain_peak,
  "s004.ex5-4.peak[123]": chain_peak,
  "s004.ex5-4.traffic_drop": lambda i: drop(lambda traffic: traffic.total_bytes),
  "s004.ex5-4.peak_drop": lambda i: drop(lambda traffic: traffic.memory.peak_bytes),
  "s004.partitions.3": lambda i: len(list(hw.fusion_partitions(i["ops"]))),
  "s004.partitions.10": lambda i: len(list(hw.fusion_partitions(i["ops"]))),
  "s004.ex5-8.A16": lambda i: projection(i).a_bytes / MIB,
  "s004.ex5-8.A8": lambda i: projection(i).quantized_a_bytes / MIB,
  "s004.ex5-8.W8": lambda i: projection(i).b_bytes / MIB,
  "s004.ex5-8.out": lambda i: projection(i).c_bytes / MIB,
  "s004.ex5-8.separate_input": lambda i: projection(i).input_bytes / MIB,
  "s004.ex5-8.fused_input": lambda i: projection(i, fuse=True).input_bytes / MIB,
  "s004.ex5-8.rest": lambda i: projection(i, fuse=True).rest_bytes / MIB,
  "s004.ex5-8.separate_total": lambda i: projection(i).total_bytes / MIB,
  "s004.ex5-8.fused_total": lambda i: projection(i, fuse=True).total_bytes / MIB,
  "s004.ex5-8.increase": lambda i: (
    projection(EX_5_8, fuse=True).total_bytes / projection(EX_5_8).total_bytes - 1
  ),
  "s004.ex5-8.one_column_separate": lambda i: projection(i).input_bytes / MIB,
  "s004.ex5-8.one_column_fused": lambda i: projection(i, fuse=True).input_bytes / MIB,
  "s004.ex5-8.acc_growth": lambda i: (
    projection({**EX_5_8, "tn": i["a"]}).accumulator_bytes
    / projection({**EX_5_8, "tn": i["b"]}).accumulator_bytes
  ),
  "s004.ex5-8.row_buffer": lambda i: projection(i).row_buffer_bytes / KIB,
}


@golden.each(COMPUTED)
def test_golden_value(identifier):
  golden.check(identifier, COMPUTED)


def test_a_split_reduction_launches_three_kernels_instead_of_one():
  launches = [rms_norm({}, splits).launches for splits in (1, 8)]
  assert launches == golden.VALUES["s004.rms.launches"]["expected"]


def test_the_published_activation_times_are_those_of_a_warm_l2():
  measured = golden.VALUES["s004.ex5-4.measured"]["expected"]
  for partition, time_us in zip(((1, 1), (2,)), measured, strict=True):
    moved = hw.fusion_traffic(chain({}, None), partition=partition)
    result = hw.achieved_bandwidth("rtx_pro_6000", bytes=moved.total_bytes, measured_us=time_us)
    assert result.exceeds_memory
    assert result.memory_time_us > 4 * time_us
    # every tensor of the chain fits that L2 together
    assert moved.memory.peak_bytes < hw.get_profile("rtx_pro_6000").l2_bytes


def test_exercise_5_2_lifetimes_and_the_rows_that_pay_for_a_fixed_overhead():
  separate, fused = three_steps({"fuse": "1|2|3"}), three_steps({"fuse": "123"})
  lives = {life.name: (life.first_step, life.last_step) for life in separate.memory.lifetimes}
  assert lives == {"G": (-1, 0), "U": (-1, 1), "T": (0, 1), "Z": (1, 2), "Q": (2, 2)}
  assert [life.name for life in fused.memory.lifetimes] == ["G", "U", "Q"]
  assert [size // MIB for size in separate.memory.resident_bytes] == [72, 72, 36]
  assert [size // MIB for size in fused.memory.resident_bytes] == [60]

  saved = (separate.total_bytes - fused.total_bytes) / SIZES["rows"]
  rows = hw.break_even_units("rtx_pro_6000", saved_bytes_per_unit=saved, overhead_us=5)
  assert rows == 92
  bandwidth = hw.get_profile("rtx_pro_6000").memory_bandwidth_bytes_per_s
  assert 91 * saved / bandwidth < 5e-6 < 92 * saved / bandwidth


@pytest.mark.parametrize("columns", [1, 2, 12])
def test_each_column_block_costs_twice_as_much_when_fused(columns):
  block_n = -(-1536 // columns)
  separate = projection({**EX_5_8, "tn": block_n})
  fused = projection({**EX_5_8, "tn": block_n}, fuse=True)
  assert separate.grid[1] == columns
  assert separate.a_read_bytes == 16 * MIB * columns
  assert fused.a_read_bytes == 32 * MIB * columns
  assert (fused.input_bytes == separate.input_bytes) == (columns == 1)
