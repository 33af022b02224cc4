"""Fusion: bytes moved, peaks, split reductions and quantised projections."""

from typing import Any

import hw_profiles as hw
from hw_profiles.examples.computed import (
  DTYPE_OF_BYTES,
  KIB,
  MIB,
  Computed,
  Inputs,
  change,
  over,
)
from hw_profiles.examples.devices import RTX, device_of

SIZES = {"rows": 1024, "width": 12288}


def chain(inputs: Inputs, quantized: str | None = "int8") -> hw.OperatorChain:
  """SiLU, product and, unless `quantized` is None, quantisation."""
  return hw.swiglu_chain(
    rows=inputs.get("rows", SIZES["rows"]),
    width=inputs.get("width", SIZES["width"]),
    quantized_dtype=quantized,
  )


def _cut(inputs: Inputs) -> Any:
  """The text's "12|3": a digit an operation, a bar where a kernel ends."""
  return tuple(len(group) for group in inputs["fuse"].split("|"))


def three_steps(inputs: Inputs) -> hw.FusionTraffic:
  """The chain cut where the text cuts it."""
  return hw.fusion_traffic(chain(inputs), partition=_cut(inputs))


def _two_steps(inputs: Inputs, fuse: bool) -> int:
  return hw.fusion_traffic(chain(inputs, None), partition=(2,) if fuse else (1, 1)).total_bytes


def rms_norm(inputs: Inputs, num_splits: int, **options: Any) -> hw.SplitReductionTraffic:
  """RMSNorm with each row in `num_splits` parts."""
  return hw.split_reduction_traffic(
    rows=inputs.get("rows", 1024),
    width=inputs.get("w", 4096),
    num_splits=num_splits,
    dtype="bfloat16",
    **options,
  )


def projection(inputs: Inputs, fuse: bool = False) -> hw.QuantizedProjectionTraffic:
  """A projection that quantises its input, in a kernel of its own or in every tile."""
  return hw.quantized_projection_traffic(
    m=inputs.get("rows", 4096),
    k=inputs["K"],
    n=inputs.get("N", 1536),
    block_m=inputs.get("tm", 128),
    block_n=inputs.get("tn", 128),
    fuse=fuse,
  )


EX_5_8 = {"rows": 4096, "K": 4096, "N": 1536, "tm": 128, "tn": 128}


def _chain_total(inputs: Inputs) -> float:
  return three_steps(inputs).total_bytes / MIB


def _chain_peak(inputs: Inputs) -> float:
  return three_steps(inputs).memory.peak_bytes / MIB


def _one_step(read_mib: int, written_mib: int) -> hw.FusionTraffic:
  """A kernel of one operation that reads and writes so much."""
  step = hw.OperatorChain(
    tensors=tuple(
      hw.ChainTensor(name, (size * MIB,), "int8")
      for name, size in (("Z", read_mib), ("Q", written_mib))
    ),
    operations=(hw.ChainOperation("quantise", ("Z",), "Q"),),
  )
  return hw.fusion_traffic(step, partition=(1,))


COMPUTED: Computed = {
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
  "s004.ex5-4.G": lambda i: (
    hw.ChainTensor("G", (i["r"], i["c"]), DTYPE_OF_BYTES[i["b"]]).bytes / MIB
  ),
  "s004.ex5-4.separate": lambda i: _two_steps(i, i["fuse"]) / MIB,
  "s004.ex5-4.fused": lambda i: _two_steps(i, i["fuse"]) / MIB,
  "s004.ex5-4.saved": lambda i: change(i).saved_bytes,
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
    hw.achieved_bandwidth(device_of(RTX, i), bytes=i["mib"] * MIB, measured_us=7.68).memory_time_us
  ),
  "s004.ex5-4.quant_extra": lambda i: _one_step(i["z"], i["q"]).total_bytes / MIB,
  "s004.ex5-4.chain[1|2|3]": _chain_total,
  "s004.ex5-4.chain[12|3]": _chain_total,
  "s004.ex5-4.chain[1|23]": _chain_total,
  "s004.ex5-4.chain[123]": _chain_total,
  "s004.ex5-4.peak[1|2|3]": _chain_peak,
  "s004.ex5-4.peak[12|3]": _chain_peak,
  "s004.ex5-4.peak[1|23]": _chain_peak,
  "s004.ex5-4.peak[123]": _chain_peak,
  "s004.ex5-4.traffic_drop": lambda i: change(i).saved_bytes,
  "s004.ex5-4.peak_drop": lambda i: change(i).saved_bytes,
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
  "s004.ex5-8.increase": lambda i: over(i) - 1,
  "s004.ex5-8.one_column_separate": lambda i: projection(i).input_bytes / MIB,
  "s004.ex5-8.one_column_fused": lambda i: projection(i, fuse=True).input_bytes / MIB,
  "s004.ex5-8.acc_growth": lambda i: (
    projection({**EX_5_8, "tn": i["a"]}).accumulator_bytes
    / projection({**EX_5_8, "tn": i["b"]}).accumulator_bytes
  ),
  "s004.ex5-8.row_buffer": lambda i: projection(i).row_buffer_bytes / KIB,
}
