"""The devices that the course texts compute with."""

import dataclasses

from hw_profiles.registry import resolve_gpu

H100 = resolve_gpu("h100_sxm")
RTX = resolve_gpu("rtx_pro_6000")
# the first text rounds its bandwidth
V100 = dataclasses.replace(resolve_gpu("v100_sxm2"), dram_bandwidth_bytes_per_s=900e9)
