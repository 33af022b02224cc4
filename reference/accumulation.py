"""How many roundings a summed product passes, and what they can add up to.

The classical result (Higham, "Accuracy and Stability of Numerical Algorithms",
2nd ed., SIAM 2002, sections 3.1 and 4.2): if every operation returns its exact
result times (1 + δ), |δ| <= u, and no term passes more than d operations, then
in whatever order a sum of K products is taken

    |computed - exact| <= γ_d·Σ_k |a_k·b_k|,    γ_d = d·u / (1 - d·u).
"""

from typing import Literal

Accumulate = Literal["ieee", "tensor_core", "tensor_core_fp8"]

# u of one float32 addition: half a unit in the last place rounded to nearest, a whole one cut off
UNIT_ROUNDOFF = {"ieee": 2.0**-24, "tensor_core": 2.0**-23, "tensor_core_fp8": 2.0**-13}

# Products that one tensor core addition takes in, at the least: 4 on V100. A100 takes 8 of
# bfloat16 and float16, with guard bits that make the cut-off of an addend smaller.
TENSOR_CORE_PRODUCTS = 4


def accumulation_depth(k: int, chunk: int | None = None, *, accumulate: Accumulate = "ieee") -> int:
  """The most roundings that any of K products passes while it is summed in float32.

      chunk is None:  K - 1                          any order whatever
      chunk = c:      (c - 1) + (ceil(K / c) - 1)    c at most K

  Summing K numbers takes K - 1 additions, so no order has a longer path; a
  zero start adds none, since 0 + x is exact. In chunks, a product passes at
  most c - 1 additions inside its chunk, in any order, and then those that
  string the chunk sums together (blocked summation: Blanchard, Higham and
  Mary, "A Class of Fast and Accurate Summation Algorithms", SIAM J. Sci.
  Comput. 42(3), A1541-A1557, 2020). Only claim a chunk where the program
  really finishes a chunk's sum before it adds it to the rest: an MMA that
  accumulates in place does not.

  "tensor_core" counts cut-offs instead. A tensor core aligns n products and
  the accumulator to the largest of them, cuts each off below that one's last
  place, adds, and cuts the normalised sum off once (Fasi, Higham, Mikaitis and
  Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science
  7:e330, 2021). The largest addend loses nothing, the n others and the sum
  less than 2^-23 each relative to Σ|addends|: n + 1 cut-offs for n products,
  most for the smallest n, 4. So c products cost c + ceil(c / 4) in place of
  c - 1.

  "tensor_core_fp8" is the same with 13 fraction bits in place of 23, which is
  what Hopper's keep of products of 8-bit floats (DeepSeek-AI, "DeepSeek-V3
  Technical Report", arXiv:2412.19437, section 3.5.2: the highest 14 bits).
  A kernel on them has float32's accuracy only as far as it ends a chunk's sum
  and adds it to a float32 one, and `chunk` says how often.

  Args:
    k: Products summed, at least 0.
    chunk: Products summed on their own before they are added to the rest;
      None: nothing is known about the order.
    accumulate: "ieee" for float32 additions rounded to nearest,
      "tensor_core" for tensor core accumulation, "tensor_core_fp8" for that of
      8-bit floats on Hopper.

  Returns:
    The count d, 0 for k = 0.

  Raises:
    ValueError: `k`, `chunk` or `accumulate` is out of range.
  """
  if k < 0:
    raise ValueError(f"k={k}: expected at least 0")
  if chunk is not None and chunk < 1:
    raise ValueError(f"accumulation_chunk={chunk}: expected at least 1, or None for any order")
  if accumulate not in UNIT_ROUNDOFF:
    raise ValueError(
      f"accumulate={accumulate!r}: expected 'ieee' or 'tensor_core', or 'tensor_core_fp8' for "
      "8-bit operands"
    )
  if k == 0:
    return 0
  inner = k if chunk is None else min(chunk, k)
  between = -(-k // inner) - 1
  if accumulate != "ieee":
    return inner + -(-inner // TENSOR_CORE_PRODUCTS) + between
  return inner - 1 + between


def gamma(count: int, unit_roundoff: float) -> float:
  """γ_n = n·u / (1 - n·u), infinite from n·u = 1 on: growth of n relative errors of u."""
  product = count * unit_roundoff
  return product / (1.0 - product) if product < 1.0 else float("inf")
