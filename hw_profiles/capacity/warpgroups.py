"""Hopper warpgroups that trade registers: one that copies, the others that compute.

A block is launched with the same number of registers a thread; `setmaxnreg`
then moves them between its warpgroups (PTX ISA): the producer gives up what it
does not need, the consumers take it.
"""

from hw_profiles.arguments import at_least

WARPGROUP_THREADS = 128
# A producer thread keeps addresses, a phase and a loop counter; 40 is what
# JAX's Mosaic GPU pipeline emitter leaves it, too.
PRODUCER_REGISTERS = 40
# setmaxnreg takes multiples of 8 from 24 to 256.
REGISTER_STEP = 8
FEWEST_REGISTERS = 24
# 256 is legal as well, but a thread addresses 255 registers, so the last eight
# would buy seven, and no block is launched with more than 255 a thread.
MOST_REGISTERS = 248
# The producer and seven consumers are 1024 threads, the most of a block.
MOST_CONSUMERS = 7


def block_threads(consumers: int) -> int:
  """Threads of a block: the producer's warpgroup and the consumers'."""
  return WARPGROUP_THREADS * (consumers + 1)


def launch_registers(consumers: int, *, registers_per_sm: int = 65536) -> int:
  """Registers each thread is launched with: the SM's, shared out in eights, at most 248.

  248, 168, 128 for 1, 2, 3 consumers.
  """
  share = registers_per_sm // block_threads(consumers)
  return min(share // REGISTER_STEP * REGISTER_STEP, MOST_REGISTERS)


def consumer_registers(
  consumers: int, *, registers_per_sm: int = 65536, producer: int = PRODUCER_REGISTERS
) -> int:
  """Registers a consumer thread may raise itself to once the producer keeps `producer`.

      ⌊(launch·(consumers + 1) - producer) / consumers⌋, rounded down to a multiple of 8

  where `launch` is what each thread of the block starts with: what the block
  was not launched with cannot be taken, and a `setmaxnreg` that asks for more
  waits for ever. 248, 232, 152 for 1, 2, 3 consumers beside 40. A single consumer could
  have more, but 248 is the largest multiple of 8 that a thread can address.

  Args:
    consumers: Consumer warpgroups, 1 to 7, beside one producer.
    registers_per_sm: 32-bit registers of an SM, one block of which runs on it.
    producer: What a producer thread keeps; what setmaxnreg takes.

  Returns:
    A value that setmaxnreg takes.

  Raises:
    ValueError: an argument is out of range, or leaves fewer than setmaxnreg takes.
  """
  at_least("consumers", consumers, 1)
  at_least("registers_per_sm", registers_per_sm, 1)
  if consumers > MOST_CONSUMERS:
    raise ValueError(
      f"consumers={consumers}: expected at most {MOST_CONSUMERS}, which with the producer are"
      f" {block_threads(MOST_CONSUMERS)} threads"
    )
  pool = launch_registers(consumers, registers_per_sm=registers_per_sm) * (consumers + 1)
  share = (pool - producer) // consumers // REGISTER_STEP * REGISTER_STEP
  if share < FEWEST_REGISTERS:
    raise ValueError(
      f"registers_per_sm={registers_per_sm}: leaves {consumers} consumer warpgroup(s) {share} a"
      f" thread, setmaxnreg takes at least {FEWEST_REGISTERS}"
    )
  return min(share, MOST_REGISTERS)
