"""Banks of the register file: source operands that cannot be read at once."""

import collections
from collections.abc import Collection, Sequence

from hw_profiles.arguments import at_least, collection


def register_bank_conflicts(
  registers: Sequence[int],
  *,
  banks: int = 4,
  reads_per_bank: int = 1,
  reused: Collection[int] = (),
) -> int:
  """Source operands that wait for another one of the same bank, bank = number mod banks.

  A register that occurs twice is read once; one in the reuse cache is not read.
  12, 4, 8 lie in one bank of four: 2 wait. 13, 4, 10 lie in three: none does.

  Four banks of one read each hold for Maxwell and Pascal (the maxas project's
  measurements). They are not what every architecture has: Volta and Turing have
  two 64-bit banks (Jia et al., "Dissecting the NVIDIA Volta GPU architecture
  via microbenchmarking", 2018), so there `banks=2, reads_per_bank=2`, where
  only three operands of one bank conflict.

  Args:
    registers: Numbers of the source registers.
    banks: Of the register file; at least 1.
    reads_per_bank: Operands a bank delivers at once; at least 1.
    reused: Registers that the reuse cache holds.

  Returns:
    Operands that wait, each for a cycle.

  Raises:
    ValueError: a number is out of range.
  """
  collection("registers", registers)
  collection("reused", reused)
  at_least("banks", banks, 1)
  at_least("reads_per_bank", reads_per_bank, 1)
  for register in registers:
    at_least("registers", register, 0)
  read = set(registers) - set(reused)
  in_bank = collections.Counter(register % banks for register in read)
  return sum(max(0, count - reads_per_bank) for count in in_bank.values())
