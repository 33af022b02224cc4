"""What the texts state of devices: given, not computed."""

import dataclasses

import golden
import pytest

import hw_profiles as hw


def _v100():
  gpu = hw.get_profile("v100_sxm2")
  tiers = hw.memory_tiers(gpu)
  return {
    "fp32_peak_flops": gpu.peak_flops["float32"],
    "l2_Bps": tiers["l2"].bandwidth_bytes_per_s,
    "smem_Bps": tiers["shared"].bandwidth_bytes_per_s,
    "reg_Bps": tiers["registers"].bandwidth_bytes_per_s,
    "reg_latency_cycles": tiers["registers"].latency_cycles[0],
    "smem_latency_cycles": list(tiers["shared"].latency_cycles),
    "l2_latency_cycles": tiers["l2"].latency_cycles[0],
    "hbm_latency_cycles": list(tiers["dram"].latency_cycles),
    "sms": gpu.sm_count,
    "regs_per_sm": gpu.registers_per_sm,
    "max_warps_per_sm": gpu.max_warps_per_sm,
  }


def _h100():
  gpu = hw.get_profile("h100_sxm")
  return {
    "sms": gpu.sm_count,
    "max_threads": gpu.max_threads_per_sm,
    "max_warps": gpu.max_warps_per_sm,
    "max_blocks": gpu.max_blocks_per_sm,
    "regs": gpu.registers_per_sm,
    "smem": gpu.shared_bytes_per_sm,
    "smem_reserved_per_block": gpu.reserved_shared_bytes_per_block,
    "pcie_each_way_Bps": gpu.pcie_bandwidth_bytes_per_s,
    "hbm_Bps": gpu.dram_bandwidth_bytes_per_s,
    "bf16_dense_flops": gpu.peak_flops["bfloat16"],
  }


def _rtx_pro_6000():
  gpu = hw.get_profile("rtx_pro_6000")
  return {
    "cc": ".".join(map(str, gpu.compute_capability)),
    "smem_per_sm": gpu.shared_bytes_per_sm,
    "smem_per_block": gpu.max_shared_bytes_per_block,
    "smem_reserved_per_block": gpu.reserved_shared_bytes_per_block,
    "pcie_each_way_Bps": gpu.pcie_bandwidth_bytes_per_s,
    "mem_Bps": gpu.dram_bandwidth_bytes_per_s,
    "bf16_dense_flops": gpu.peak_flops["bfloat16"],
  }


def _rtx_4090():
  return {"mem_Bps": hw.get_profile("rtx_4090").dram_bandwidth_bytes_per_s}


@pytest.mark.parametrize(
  ("identifier", "ours"),
  [
    ("s000.hw.v100", _v100()),
    ("s004.hw.h100", _h100()),
    ("s004.hw.rtx_pro_6000", _rtx_pro_6000()),
    ("s004.hw.rtx_4090", _rtx_4090()),
  ],
)
def test_profiles_hold_the_data_the_texts_give(identifier, ours):
  expected = golden.VALUES[identifier].expected
  assert ours == {name: expected[name] for name in ours}


def test_the_v100_memory_is_what_the_device_reports_not_the_rounded_figure():
  gpu = hw.get_profile("v100_sxm2")
  stated = golden.VALUES["s000.hw.v100"].expected["hbm_Bps"]
  assert round(gpu.dram_bandwidth_bytes_per_s, -11) == stated
  assert "900 GB/s" in gpu.source("dram_bandwidth_bytes_per_s").note


def test_the_stated_register_bandwidth_cannot_be_the_ceiling():
  gpu = hw.get_profile("v100_sxm2")
  needed = hw.operand_bandwidth_bytes_per_s(flops_per_s=gpu.peak_flops["float32"])
  # 94.2 TB/s at the peak that the same text gives, against its 20 TB/s
  assert needed > 4 * gpu.register_bandwidth_bytes_per_s
  assert "94.2 TB/s" in gpu.source("register_bandwidth_bytes_per_s").note
  bound = hw.roofline(gpu, flops=2, bytes=12, dtype="float32", tier="registers")
  assert bound.bound == "memory"
  lifted = dataclasses.replace(gpu, register_bandwidth_bytes_per_s=needed)
  assert hw.roofline(lifted, flops=2, bytes=12, dtype="float32", tier="registers").bound == (
    "compute"
  )
