"""The K loop as a sequence of operations, stages, and loop orders, against walks."""

import itertools

import pytest

import hw_profiles as hw

H100 = hw.get_profile("h100_sxm")
V100 = hw.get_profile("v100_sxm2")
KIB = 1024


@pytest.mark.parametrize("k", [0, 1, 8, 20, 64])
@pytest.mark.parametrize("block_k", [1, 2, 3, 8])
@pytest.mark.parametrize("buffers", [1, 2])
def test_the_k_loop_computes_every_step_from_what_was_loaded_for_it(k, block_k, buffers):
  loop = hw.k_loop(k=k, block_k=block_k, shared_buffers=buffers)
  registers, shared, visible, fragments, computed = None, {}, {}, {}, []
  pending_reads = set()
  for event in loop.events:
    if event.operation == "ldg":
      registers = event.tile
    elif event.operation == "sts":
      # other threads may still read what was loaded since the last barrier
      assert event.buffer not in pending_reads
      shared[event.buffer] = registers
    elif event.operation == "barrier":
      visible, pending_reads = dict(shared), set()
    elif event.operation == "lds":
      if event.used:
        assert visible[event.buffer] == event.tile
      fragments[event.fragment_buffer] = (event.tile, event.step) if event.used else None
      pending_reads.add(event.buffer)
    else:
      assert fragments[event.fragment_buffer] == (event.tile, event.step)
      computed.append((event.tile, event.step))
  tiles = -(-k // block_k)
  assert computed == list(itertools.product(range(tiles), range(block_k)))
  assert loop.loop_barriers == tiles * (2 if buffers == 1 else 1)
  assert loop.prologue_barriers == (1 if buffers == 2 and tiles else 0)
  assert loop.unused_loads == loop.prologue_barriers


def test_global_loads_are_issued_before_the_steps_that_hide_them():
  loop = hw.k_loop(k=32, block_k=8, shared_buffers=2)
  order = [(event.operation, event.tile) for event in loop.events]
  for tile in range(1, loop.tiles):
    issued, stored = order.index(("ldg", tile)), order.index(("sts", tile))
    assert sum(1 for event in order[issued:stored] if event[0] == "ffma") == 8
  single = hw.k_loop(k=32, block_k=8, shared_buffers=1)
  order = [(event.operation, event.tile) for event in single.events]
  for tile in range(single.tiles):
    assert order.index(("sts", tile)) == order.index(("ldg", tile)) + 1


@pytest.mark.parametrize("block_k", [1, 2, 8])
def test_the_register_pipeline_computes_what_the_last_iteration_loaded(block_k):
  iterations = hw.register_pipeline(block_k=block_k)
  assert len(iterations) == block_k + 1
  buffers = {}
  computed = []
  for p, (compute, load) in enumerate(iterations):
    if compute is not None:
      assert buffers[(p - 1) % 2] == compute
      computed.append(compute)
    if load is not None:
      buffers[p % 2] = load
  assert computed == list(range(block_k))


def test_multiply_adds_hide_both_latencies():
  for latency in (300, 500):
    assert hw.latency_cover(thread_m=8, thread_n=8, steps=8, latency_cycles=latency).coverage > 2
  assert hw.latency_cover(thread_m=8, thread_n=8, steps=1, latency_cycles=30).coverage > 4
  assert hw.latency_cover(thread_m=2, thread_n=2, steps=8, latency_cycles=300).coverage < 1


def test_stages_cost_shared_memory_and_in_the_end_blocks():
  options = hw.stage_options(
    V100,
    block_m=128,
    block_n=128,
    block_k=8,
    in_dtype="float32",
    threads_per_block=256,
    registers_per_thread=128,
  )
  assert [option.shared_bytes_per_block for option in options] == [
    8 * KIB, 16 * KIB, 24 * KIB, 32 * KIB
  ]  # fmt: skip
  assert [option.residency.resident_blocks for option in options] == [2, 2, 2, 2]
  assert [option.bytes_ahead_per_sm for option in options] == [0, 16 * KIB, 32 * KIB, 48 * KIB]
  deep = hw.stage_options(
    H100,
    block_m=128,
    block_n=128,
    block_k=64,
    in_dtype="bfloat16",
    threads_per_block=256,
    registers_per_thread=128,
    max_stages=8,
  )
  blocks = [option.residency.resident_blocks if option.residency else 0 for option in deep]
  assert blocks == [2, 2, 2, 1, 1, 1, 1, 0]
  with pytest.raises(hw.InfeasibleTileError, match="registers_per_thread=256"):
    hw.stage_options(
      H100,
      block_m=128,
      block_n=128,
      block_k=64,
      in_dtype="bfloat16",
      threads_per_block=256,
      registers_per_thread=256,
    )
