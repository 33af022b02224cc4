"""What the attention time models take of how kernels are written, not of a device."""

from hw_profiles.profile import Source

# Two groups of warps take turns at the tensor cores; this share of the softmax is still not
# hidden under products: barriers between the groups, drained wgmmas, first and last steps.
EXPOSED_SOFTMAX = Source(
  value=0.3,
  source=(
    "FlashAttention-3 paper (Shah et al. 2024), forward without mask on H100: 497 TFLOP/s at"
    " 16384 x 64, 648 at 16384 x 128 and 736 at 4096 x 256; the time of a step beyond its"
    " products is the same 700 to 830 cycles a 128 x 128 block at all three"
  ),
  confidence="calibrated",
  note="with exponentials at 16 results a cycle and SM, and 3.5 instructions a score",
)

# The same of the backward kernel, whose five products of a step wait for one another.
EXPOSED_GRADIENT_SOFTMAX = Source(
  value=1.0,
  source=(
    "flash_attention's Hopper gradients on an H200 (docs/results/h200-attention.json) at 2 x 8192 x"
    " 16 heads of 128: 4706 us full and 2486 us causal, where nothing hidden gives 4617 and 2351"
  ),
  confidence="calibrated",
)

# With a few rows a program, wgmmas, reductions across warps and exponentials of a step follow
# one another; this many cycles of a step for each key of it.
DECODE_CYCLES_PER_KEY = Source(
  value=20,
  source=(
    "17 tiles of the portable decode on an H200 (docs/results/h200-attention.json), 32 heads on 8"
    " key heads of 128, one sequence of 131072 keys"
  ),
  confidence="calibrated",
  note="with a stage less in flight than there are, as Triton's pipeline has; 4 warps",
)

# Two warps are on two of an SM's four sub-partitions: what waits for the others' issue slots is not
# hidden under the next loads, unless a second program is there.
EXPOSED_DECODE_CHAIN = Source(
  value=0.3,
  source=(
    "the portable decode on an H200 (docs/results/h200-attention.json), 1 x 8192 keys, 64 keys of 2"
    " warps, cold L2: the kernel of 16 parts takes 11.5 us, of 32 parts 10.7; eight steps of 0.7 us"
  ),
  confidence="calibrated",
  note="of 4 warps of 128 keys 16 parts take 10.8, too; with warm L2 9.9, 7.3 and 8.1",
)

# The merge loads all parts at once and sums them; its start is that of any kernel, and its bytes
# are charged beside it.
DECODE_CYCLES_PER_PART = Source(
  value=4,
  source=(
    "the portable decode on an H200 (docs/results/h200-attention.json), 1 x 8192 keys: the merge of"
    " 16, 32 and 64 parts takes 1.2, 1.4 and 1.5 us, most of which more is that of their bytes"
  ),
  confidence="calibrated",
)

# A part's 64 x columns of float32 and 64 x 8 of its numbers go to another block of the cluster
# word by word, each counted by the receiver's barrier.
EXCHANGE_CYCLES = Source(
  value=3400,
  source=(
    "the Hopper decode on an H200 (docs/results/h200-attention.json), 1 x 8192 keys, 8 key heads of"
    " 128: 45.0 us with 16 parts and 28.8 with 8, of which reading the cache is 9"
  ),
  confidence="calibrated",
)

# Barriers of a step, and the drain and refill of the tensor cores at its ends.
STEP_OVERHEAD_CYCLES = Source(
  value=240.0,
  source=(
    "flash_attention's Hopper kernel on an H200, 2 x 8192 x 16 heads of 128, causal: blocks of"
    " 128 x 128 take 1.72 us a step, of 128 x 64 0.94 us, so 0.15 us do not shrink with the block"
  ),
  confidence="calibrated",
)
