"""The attention's schedule on Ascend: a cube core multiplies, its vector cores do the softmax.

    910B, 910C   S: L0C ─FixPipe→ GM ─MTE2→ UB    P: UB ─MTE3→ GM ─MTE2→ L1    O: as S
    950          S: L0C ─FixPipe→ UB              P: UB ─MTE3→ L1              O: as S

Cube and vector cores work on different steps at the same time. Forward each
step's product P·V leaves L0C, as the vector cores rescale the running O;
backward the gradients stay in L0C until the end of a tile. Operands lie in
fractals of 16 rows x 32 B.
"""

from hw_profiles.arguments import ceil_div
from hw_profiles.attention.config import AttentionConfig
from hw_profiles.attention.cube_tile import (
  FLOAT32_BYTES,
  PING_PONG,
  exchanges_directly,
  l0_depth,
  l0b_side,
  l0c_bytes,
  l0c_slots,
  l1_bytes,
  padded_dim,
  padded_rows,
  row_ub_bytes,
  running_ub_bytes,
  slab_rows,
  step_operand_bytes,
  sub_columns,
  total_dim,
  workspace_bytes,
)
from hw_profiles.attention.npu_phase import NpuPhase, npu_phases_time
from hw_profiles.attention.pass_traffic import passes_traffic
from hw_profiles.attention.passes import AttentionPass, attention_passes
from hw_profiles.attention.problem import AttentionProblem
from hw_profiles.capacity.buffers import Buffer, Shortfall, fullest
from hw_profiles.cost.arithmetic import missing_cube_rate
from hw_profiles.cost.l2_reuse import L2_OPERAND_FRACTION
from hw_profiles.cost.npu_time import NpuAmounts
from hw_profiles.cost.wave import wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.planner.op_model import Demand, Execution
from hw_profiles.profile import NpuProfile

NAME = "cube_vector"
# Simple vector operations a score. Forward: scale, row maximum, subtract it, row sum, round.
# Backward: scale, subtract the log-sum-exp, dP - delta, times P, scale, round P and dS.
VECTOR_OPERATIONS = FrozenMap(forward=5, dkv=7, dq=7)
# A score in a boundary block is compared and selected.
MASK_OPERATIONS = 2
# Running O of each row, forward: multiplied by the row's factor, and added to.
RESCALE_OPERATIONS = 2

ASSUMPTIONS = (
  "L2 starts cold and keeps what the programs of one head walk, up to"
  f" {100 * L2_OPERAND_FRACTION:.0f} % of it; what cube and vector cores exchange stays there",
  "tiles are dealt out longest first to whichever cube core is free",
)


def pass_buffers(npu: NpuProfile, passes: tuple[AttentionPass, ...]) -> tuple[Buffer, ...]:
  """Everything one cube core and one of its vector cores keep, pass by pass."""
  found = []
  for one in passes:
    prefix = f"{one.name}: " if len(passes) > 1 else ""
    for name, (needed, count) in l1_bytes(one, npu).items():
      found.append(Buffer(f"{prefix}{name}", "L1", needed, npu.l1_bytes, count))
    depth = max(l0_depth(one, npu), npu.c0_bytes // one.size_bytes)
    rows, sub = padded_rows(one.rows, npu), sub_columns(one, npu)
    left = PING_PONG * rows * depth * one.size_bytes
    right = PING_PONG * max(sub, l0b_side(one, npu)) * depth * one.size_bytes
    slab = max(slab_rows(one, npu), 1) * row_ub_bytes(one)
    found += [
      Buffer(f"{prefix}left slice", "L0A", left, npu.l0a_bytes, PING_PONG),
      Buffer(f"{prefix}right slice", "L0B", right, npu.l0b_bytes, PING_PONG),
      Buffer(
        f"{prefix}scores and results",
        "L0C",
        l0c_bytes(one, npu),
        npu.l0c_bytes,
        l0c_slots(one, npu),
      ),
      Buffer(f"{prefix}slab of scores", "UB", slab, npu.ub_bytes, PING_PONG),
      Buffer(f"{prefix}row states", "UB", running_ub_bytes(one, npu), npu.ub_bytes, 1),
    ]
    if not exchanges_directly(npu):
      workspace = workspace_bytes(one, npu)
      found.append(Buffer(f"{prefix}workspace", "GM", workspace, npu.hbm_bytes, PING_PONG))
  return tuple(found)


def unsupported(problem: AttentionProblem, npu: NpuProfile) -> tuple[Shortfall, ...]:
  """A dtype the cube does not multiply."""
  return missing_cube_rate(problem.dtype, npu)


def shortfalls(
  problem: AttentionProblem, config: AttentionConfig, npu: NpuProfile
) -> tuple[Shortfall, ...]:
  """L1, L0A, L0B, L0C and UB against what a tile needs, pass by pass."""
  return tuple(
    found for one in attention_passes(problem, config) for found in capacity_shortfalls(npu, one)
  )


def capacity_shortfalls(npu: NpuProfile, one: AttentionPass) -> list[Shortfall]:
  """Memories that a pass has too little of."""
  found = []
  rows = padded_rows(one.rows, npu)
  sides = one.side_fields
  of_rows = (one.rows_field,) if one.rows_field else ()
  kept = " and ".join(f"{name} ({rows}x{dim})" for name, dim in one.kept)
  streamed = " and ".join(f"{name} ({sub_columns(one, npu)}x{dim})" for name, dim in one.streamed)
  needed = sum(size for size, _ in l1_bytes(one, npu).values())
  if needed > npu.l1_bytes:
    fields = ("num_stages", *sides) if one.num_stages > 2 else (*sides, "num_stages")
    found.append(
      Shortfall(
        "capacity",
        "L1",
        fields,
        f"L1 needs {needed} B for {kept}, {one.num_stages} stage(s) of {streamed} and"
        f" probabilities, {npu.name} has {npu.l1_bytes} B",
      )
    )
  fractal = npu.c0_bytes // one.size_bytes
  for space, side, capacity, fields in (
    ("L0A", rows, npu.l0a_bytes, of_rows),
    ("L0B", l0b_side(one, npu), npu.l0b_bytes, ()),
  ):
    needed = PING_PONG * side * fractal * one.size_bytes
    if needed > capacity:
      found.append(
        Shortfall(
          "capacity",
          space,
          fields,
          f"{space} needs {needed} B for {PING_PONG} slices one fractal deep ({side}x{fractal}"
          f" {one.dtype}), {npu.name} has {capacity} B",
        )
      )
  needed = l0c_bytes(one, npu)
  if needed > npu.l0c_bytes:
    results = " and ".join(f"{name} ({rows}x{dim})" for name, dim in one.accumulators)
    found.append(
      Shortfall(
        "capacity",
        "L0C",
        sides,
        f"L0C needs {needed} B for {one.score_tiles} float32 score tile(s)"
        f" ({rows}x{sub_columns(one, npu)}) and {results}, {npu.name} has {npu.l0c_bytes} B",
      )
    )
  if not slab_rows(one, npu):
    needed = running_ub_bytes(one, npu) + row_ub_bytes(one)
    found.append(
      Shortfall(
        "capacity",
        "UB",
        sides,
        f"UB needs {needed} B for the row states and one row of {one.columns} scores, {npu.name}"
        f" has {npu.ub_bytes} B",
      )
    )
  return found


def demand(problem: AttentionProblem, config: AttentionConfig, npu: NpuProfile) -> Demand:
  """Operands, rings, slices, scores, slab and workspace."""
  passes = attention_passes(problem, config)
  held = pass_buffers(npu, passes)
  delta = (2 * problem.output_bytes + problem.residual_bytes,) if problem.backward else ()
  notes = ("a pass before the two sums delta = rowsum(dO·O)",) if delta else ()
  return Demand(
    buffers=held,
    traffic=passes_traffic(
      problem, passes, buffers=held, on_chip=("L1", "L0A", "L0B", "L0C", "UB")
    ),
    tiles=passes[0].visits.blocks,
    cores=npu.aic_count,
    execution=lambda: npu_execution(passes, npu, streamed_passes=delta),
    notes=notes,
    assumptions=ASSUMPTIONS,
  )


def npu_execution(
  passes: tuple[AttentionPass, ...], npu: NpuProfile, *, streamed_passes: tuple[int, ...] = ()
) -> Execution:
  """How the kernels run.

  Args:
    passes: The kernels.
    npu: The device.
    streamed_passes: Bytes of each pass beside them that only streams.
  """
  phases = tuple(_phase(one, npu) for one in passes)
  tiers = {"hbm": sum(streamed_passes), "l1": 0, "l0": 0, "l0c": 0, "ub": 0}
  notes = []
  for one, phase in zip(passes, phases, strict=True):
    steps, tiles, step = one.visits.total, one.visits.blocks, phase.per_step
    tiers["hbm"] += phase.hbm_bytes
    tiers["l1"] += steps * (step.l1_bytes + step.ub_to_l1_bytes) + tiles * phase.per_tile.l1_bytes
    tiers["l0"] += steps * (step.l0a_bytes + step.l0b_bytes)
    tiers["l0c"] += steps * (step.l0c_to_gm_bytes + step.l0c_to_ub_bytes)
    tiers["l0c"] += tiles * phase.per_tile.l0c_to_gm_bytes
    tiers["ub"] += steps * (step.gm_to_ub_bytes + step.l0c_to_ub_bytes)
    prefix = f"{one.name}: " if len(passes) > 1 else ""
    notes += [f"{prefix}{note}" for note in _notes(one, npu, phase)]
  held = pass_buffers(npu, passes)
  return Execution(
    work=npu_phases_time(npu, phases, streamed_passes=streamed_passes),
    resident_blocks=min(l0c_slots(one, npu) for one in passes),
    residency=None,
    # L0A, L0B and UB are left out: their slices are derived to fill them
    binding=fullest(held, ("L1", "L0C")),
    waves=wave(programs=passes[0].visits.blocks, cores=npu.aic_count),
    traffic_bytes=FrozenMap(tiers),
    notes=tuple(notes),
  )


def _phase(one: AttentionPass, npu: NpuProfile) -> NpuPhase:
  size = one.size_bytes
  rows = padded_rows(one.rows, npu)
  columns = padded_rows(one.columns, npu)
  scores = rows * columns
  products = sum(padded_dim(dim, one, npu) for dim in one.products)
  score_bytes = one.score_tiles * scores * FLOAT32_BYTES
  probability_bytes = step_operand_bytes(one, npu)
  results = rows * total_dim(one.accumulators, one, npu)
  forward = one.name == "forward"
  # what leaves L0C in a step: scores, and forward the step's P·V
  out_bytes = score_bytes + (results * FLOAT32_BYTES if forward else 0)
  direct = exchanges_directly(npu)
  simple = VECTOR_OPERATIONS[one.name] + MASK_OPERATIONS * one.visits.boundary_fraction
  rescaled = RESCALE_OPERATIONS * results if forward else 0
  streamed = columns * total_dim(one.streamed, one, npu) * size
  # through GM and back, where L2 does not keep it
  exchanged = 0 if direct else out_bytes + probability_bytes
  l2_share = npu.l2_bytes * L2_OPERAND_FRACTION
  stored = one.live_rows * sum(dim for _, dim in one.accumulators) * one.result_size_bytes
  loaded = one.live_rows * sum(dim for _, dim in one.kept) * size
  loaded_bytes = one.step_bytes + (0 if direct else probability_bytes)
  return NpuPhase(
    tiles=one.visits.blocks,
    load=one.visits.busiest(cores=npu.aic_count),
    per_step=NpuAmounts(
      l1_bytes=loaded_bytes,
      # the kept operands for the scores, the probabilities for the results
      l0a_bytes=rows * total_dim(one.kept, one, npu) * size + probability_bytes,
      l0b_bytes=streamed * ceil_div(len(one.products), len(one.streamed)),
      macs=scores * products,
      l0c_to_gm_bytes=0 if direct else out_bytes,
      l0c_to_ub_bytes=out_bytes if direct else 0,
      gm_to_ub_bytes=0 if direct else out_bytes,
      vector_bytes=round((simple * scores + rescaled) * FLOAT32_BYTES),
      exp_elements=scores,
      ub_to_gm_bytes=0 if direct else probability_bytes,
      ub_to_l1_bytes=probability_bytes if direct else 0,
    ),
    # O leaves through the vector cores, gradients through FixPipe
    per_tile=NpuAmounts(
      l1_bytes=loaded,
      l0c_to_gm_bytes=0 if forward else stored,
      vector_bytes=RESCALE_OPERATIONS * results * FLOAT32_BYTES if forward else 0,
      ub_to_gm_bytes=stored if forward else 0,
    ),
    sub_steps=ceil_div(columns, sub_columns(one, npu)),
    macs_per_cycle=npu.cube_macs_per_cycle[one.dtype],
    num_stages=one.num_stages,
    # probabilities come from L2, which has them
    cold_fraction=one.step_bytes / max(loaded_bytes, 1),
    hbm_bytes=one.dram_bytes(wave_programs=npu.aic_count, l2_bytes=l2_share)
    + (0 if workspace_bytes(one, npu) <= l2_share else 2 * one.visits.total * exchanged),
  )


def _notes(one: AttentionPass, npu: NpuProfile, phase: NpuPhase) -> tuple[str, ...]:
  path = "L0C -> UB -> L1" if exchanges_directly(npu) else "L0C -> GM -> UB -> GM -> L1 (L2)"
  drained = "" if l0c_slots(one, npu) > 1 else ", which FixPipe drains behind the cube (UnitFlag)"
  notes = [
    f"scores go {path}; {npu.vector_cores_per_cube_core} vector cores share the rows in slabs of"
    f" {slab_rows(one, npu)}",
    f"L0C holds {l0c_slots(one, npu)} tile(s) of scores{drained}",
    f"L0 slices {l0_depth(one, npu)} deep, the deepest of which L0A and L0B hold two",
    f"{one.visits.blocks} tiles walk {one.visits.total} blocks, {one.visits.boundary} of them"
    f" masked; the busiest core {phase.load.steps} in {phase.load.tiles} tile(s)",
  ]
  padded = [
    f"{name} {dim} wide as {padded_dim(dim, one, npu)}"
    for name, dim in dict((*one.kept, *one.streamed)).items()
    if padded_dim(dim, one, npu) != dim
  ]
  return (*notes, f"padded: {', '.join(padded)}") if padded else tuple(notes)
