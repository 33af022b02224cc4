"""Registers that Hopper's warpgroups trade."""

import pytest

from hw_profiles.capacity.warpgroups import (
  PRODUCER_REGISTERS,
  block_threads,
  consumer_registers,
  launch_registers,
)


@pytest.mark.parametrize(
  ("consumers", "launched", "raised"),
  # 232 for two, 152 for three beside a producer of 40; a thread addresses 255
  [(1, 248, 248), (2, 168, 232), (3, 128, 152), (7, 64, 64)],
)
def test_registers_of_known_blocks(consumers, launched, raised):
  assert launch_registers(consumers) == launched
  assert consumer_registers(consumers) == raised


@pytest.mark.parametrize("consumers", range(1, 8))
@pytest.mark.parametrize("registers_per_sm", [32768, 65536, 131072])
def test_every_count_is_legal_and_was_launched_with_the_block(consumers, registers_per_sm):
  raised = consumer_registers(consumers, registers_per_sm=registers_per_sm)
  launched = launch_registers(consumers, registers_per_sm=registers_per_sm)
  assert raised in range(24, 249, 8)
  # setmaxnreg hands out only what the block was launched with
  assert PRODUCER_REGISTERS + consumers * raised <= (consumers + 1) * launched
  assert block_threads(consumers) * launched <= registers_per_sm


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"consumers": 0}, "consumers=0: expected an integer of at least 1"),
    ({"consumers": 8}, "consumers=8: expected at most 7"),
    ({"consumers": 7, "registers_per_sm": 16384}, "registers_per_sm=16384: leaves 7 consumer"),
  ],
)
def test_what_no_block_can_have_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    consumer_registers(**arguments)
