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

# With a few rows a program, wgmmas, reductions across warps and exponentials of a step follow
# one another; this many cycles of a step for each key of it.
DECODE_CYCLES_PER_KEY = Source(
  value=12,
  source=(
    "16 tiles of the portable decode on an H200 (docs/results/h200-attention.json), 32 heads on 8"
    " key heads of 128, one sequence of 8192 keys"
  ),
  confidence="calibrated",
  note="with a stage less in flight than there are, as Triton's pipeline has; 4 warps",
)

# The merge takes the parts of a row in turn, each a load that its predecessor waits for.
DECODE_CYCLES_PER_PART = Source(
  value=380,
  source="the same tiles: what 64 parts take longer than 16 at 1 x 8192, about 14 us",
  confidence="calibrated",
)
