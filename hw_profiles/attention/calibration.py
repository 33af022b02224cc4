"""What the attention time models take of how kernels are written, not of a device."""

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
