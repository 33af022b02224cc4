"""Constants of the attention time models that no profile has, each with its source."""

from hw_profiles.profile import Source

# Two groups of warps take turns at the tensor cores; this share of the softmax is still not
# hidden under products: barriers between the groups, drained wgmmas, first and last steps.
EXPOSED_SOFTMAX = Source(
  value=0.45,
  source=(
    "FlashAttention-3 paper (Shah et al. 2024), forward without mask on H100: 497 TFLOP/s at"
    " 16384 x 64, 648 at 16384 x 128 and 736 at 4096 x 256; the time of a step beyond its"
    " products is the same 700 to 830 cycles a 128 x 128 block at all three"
  ),
  confidence="calibrated",
  note="with exponentials at 16 results a cycle and SM, and 3.5 instructions a score",
)

# Warps that wait for each product (mma.sync) reach this share of the tensor peak of a device
# whose full rate takes queued wgmmas.
SYNCHRONOUS_MMA_FRACTION = Source(
  value=0.63,
  source="Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU (arXiv 2402.13499):"
  " mma reaches 62.9 % of the peak on Hopper",
  confidence="medium",
)

# What a kernel costs that starts as soon as the one before it ends.
KERNEL_BOUNDARY_US = Source(
  value=2.2,
  source="36 one-row kernels in one jitted chain took 78 us on one H200 (jax 0.11.2)",
  confidence="medium",
)

# Starting cube and vector cores together costs more than a launch of cube cores alone.
MIXED_LAUNCH_US = Source(
  value=3,
  source="catlass performance guide: a launch of cube and vector cores takes 1 to 5 us; the middle",
  confidence="medium",
)
