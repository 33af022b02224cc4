"""Hardware profiles: the numbers of one device, each with its unit and its source."""

import dataclasses
from typing import Any, ClassVar, Literal

from hw_profiles.frozen_map import FrozenMap

Confidence = Literal["high", "medium", "low", "assumed", "calibrated", "unknown"]

# From Ada and Hopper on there are instructions that convert to and from e4m3; Triton makes no
# others of it.
E4M3_COMPUTE_CAPABILITY = (8, 9)


@dataclasses.dataclass(frozen=True)
class Source:
  """Where one number of a profile comes from.

  Attributes:
    value: The value as the data file has it.
    source: The document, file, device dump or measurement it was read from.
    confidence: "high": a first-party file or device dump. "medium": one
      secondary source, or sources that differ a little. "low": one weak
      source. "assumed": no source; the text says what it was taken from.
      "calibrated": chosen so that the time model meets a named measurement.
      "unknown": the value is None, and `source` says why there is none.
    note: Disagreements and conditions; empty where there are none.
  """

  value: Any
  source: str
  confidence: str
  note: str = ""


@dataclasses.dataclass(frozen=True)
class Profile:
  """What both vendors' profiles have.

  Attributes:
    name: The profile's key, for example "h100_sxm".
    title: The device as people call it.
    aliases: Other names `get_profile` takes.
    sources: Field name (or "field.dtype") to `Source`.
  """

  vendor: ClassVar[str]

  name: str
  title: str
  aliases: tuple[str, ...]
  sources: FrozenMap[str, Source] = dataclasses.field(repr=False, compare=False)

  def source(self, field: str) -> Source:
    """Where the number in `field` comes from.

    Args:
      field: A field name, or "field.dtype" for a field that holds one number a
        dtype, for example "peak_flops.bfloat16".

    Raises:
      ValueError: the profile has no such number.
    """
    if not isinstance(field, str) or field not in self.sources:
      known = ", ".join(sorted(self.sources))
      raise ValueError(f"field={field!r}: {self.name} has no such number; it has {known}")
    recorded = self.sources[field]
    name, _, dtype = field.partition(".")
    value = getattr(self, name)
    if dtype:
      value = value.get(dtype)
    if value != recorded.value:
      return Source(
        value=value,
        source="set by the caller",
        confidence="assumed",
        note=f"the data file has {recorded.value!r} from {recorded.source}",
      )
    return recorded

  def unknown(self) -> tuple[str, ...]:
    """Fields that are None: no source gives them, and `source` says why.

    A time model that would read one charges nothing for it, and the planner says
    so.
    """
    return tuple(
      field.name for field in dataclasses.fields(self) if getattr(self, field.name) is None
    )


def known(value: float | None, otherwise: float) -> float:
  """`value`, or `otherwise` where a profile does not know it."""
  return otherwise if value is None else value


@dataclasses.dataclass(frozen=True)
class GpuProfile(Profile):
  """One NVIDIA GPU.

  Attributes:
    device_kinds: JAX's `device_kind` strings of exactly this device.
    compute_capability: Major and minor, (9, 0) for Hopper: compares as numbers.
    sm_count: Streaming multiprocessors.
    max_threads_per_sm: Resident threads an SM holds.
    max_warps_per_sm: Resident warps an SM holds.
    max_blocks_per_sm: Resident thread blocks an SM holds.
    max_threads_per_block: Threads of one block.
    registers_per_sm: 32-bit registers of an SM.
    max_registers_per_thread: The most a thread can address.
    register_unit_per_warp: Registers are allocated to a warp in this unit.
    warp_granularity: Warps are allocated to a block in this unit (the SM has
      that many sub-partitions, each with its share of the registers).
    shared_bytes_per_sm: Shared memory of an SM.
    max_shared_bytes_per_block: What one block may ask for (opt-in limit).
    reserved_shared_bytes_per_block: What the system takes for each block.
    shared_granularity_bytes: Shared memory is allocated in this unit.
    shared_bytes_per_cycle_per_sm: What the banks of shared memory deliver.
    shared_bandwidth_bytes_per_s: Shared memory of all SMs together where a source
      quotes what is reached; None: the banks' peak is all that is known.
    register_bandwidth_bytes_per_s: Registers of all SMs together, as quoted.
    latency_cycles: Lowest and highest load latency in SM cycles by memory tier
      ("registers", "shared", "l2", "dram"), of the tiers that a source gives.
    tensor_memory_bytes_per_sm: Tensor memory (compute capability 10.0); 0: none.
    special_functions_per_cycle_per_sm: Results a cycle of exp2, reciprocal...
    l2_bytes: L2 capacity.
    l2_bandwidth_bytes_per_s: L2 to all SMs together; None: unknown.
    dram_bytes: DRAM capacity.
    dram_bandwidth_bytes_per_s: DRAM peak.
    dram_latency_ns: Load latency from DRAM.
    clock_hz: The SM clock behind the peaks.
    max_clock_hz: The highest SM clock, which holds while the power limit does not bind;
      the banks of shared memory run at it.
    peak_flops: Dense peak in FLOP/s by dtype, float32 accumulation; "float32"
      is the CUDA cores' rate, "tfloat32" the tensor cores'.
    has_wgmma: Warpgroup MMA (compute capability 9.0).
    has_tma: Tensor memory accelerator (9.0 and later).
    launch_overhead_us: Device time of a launch that does nothing, with tensor
      maps, barriers and the ramp of its pipeline; None: unknown.
    stream_launch_us: The same of a plain kernel, without these.
    launch_gap_us: From the end of a kernel to the start of the next that needs
      its results.
    sustained_tensor_fraction: Share of the tensor peak that full waves hold.
    sustained_cuda_core_fraction: The same of the float32 peak of the CUDA cores.
    synchronous_mma_fraction: Share of the tensor peak of warps that wait for
      each product (mma.sync), where the full rate takes queued ones.
    narrow_copy_cycles: What a warp's copy takes of an SM where its lanes copy less
      than 16 bytes each, through registers.
    sustained_dram_fraction: Share of the DRAM peak that streaming reaches; None:
      unknown.
    sustained_l2_fraction: Share of the L2 bandwidth that streaming reaches.
    pcie_bandwidth_bytes_per_s: PCIe each way: the lanes' raw rate, of which the
      128b/130b code takes 1.5 %.
    nvlink_bandwidth_bytes_per_s: NVLink, both directions together; 0: none.
  """

  vendor: ClassVar[str] = "nvidia"

  device_kinds: tuple[str, ...]
  compute_capability: tuple[int, int]
  sm_count: int
  max_threads_per_sm: int
  max_warps_per_sm: int
  max_blocks_per_sm: int
  max_threads_per_block: int
  registers_per_sm: int
  max_registers_per_thread: int
  register_unit_per_warp: int
  warp_granularity: int
  shared_bytes_per_sm: int
  max_shared_bytes_per_block: int
  reserved_shared_bytes_per_block: int
  shared_granularity_bytes: int
  shared_bytes_per_cycle_per_sm: int
  shared_bandwidth_bytes_per_s: float | None
  register_bandwidth_bytes_per_s: float | None
  latency_cycles: FrozenMap[str, tuple[int, int]]
  tensor_memory_bytes_per_sm: int
  special_functions_per_cycle_per_sm: int
  l2_bytes: int
  l2_bandwidth_bytes_per_s: float | None
  dram_bytes: int
  dram_bandwidth_bytes_per_s: float
  dram_latency_ns: float
  clock_hz: float
  max_clock_hz: float
  peak_flops: FrozenMap[str, float]
  has_wgmma: bool
  has_tma: bool
  launch_overhead_us: float | None
  stream_launch_us: float
  launch_gap_us: float
  sustained_tensor_fraction: float
  sustained_cuda_core_fraction: float
  synchronous_mma_fraction: float
  narrow_copy_cycles: float
  sustained_dram_fraction: float | None
  sustained_l2_fraction: float
  pcie_bandwidth_bytes_per_s: float
  nvlink_bandwidth_bytes_per_s: float

  @property
  def memory_bandwidth_bytes_per_s(self) -> float:
    """Peak bandwidth of the device memory, under one name for both vendors."""
    return self.dram_bandwidth_bytes_per_s


@dataclasses.dataclass(frozen=True)
class NpuProfile(Profile):
  """One Huawei Ascend NPU: cube cores (AIC), each with two vector cores (AIV).

  On architecture 2201 (910B, 910C) cube and vector cores exchange data through
  GM only. 3510 (950) adds L0C to UB and UB to L1.

  Buffer sizes are per AIC, `ub_bytes` per AIV. Path rates are bytes a cycle and
  core.

  Attributes:
    architecture: The vendor's number: 2201 (A2 and A3) or 3510 (950).
    aic_count: Cube cores.
    aiv_count: Vector cores.
    clock_hz: Core clock.
    l0a_bytes: Left operand slices of the cube.
    l0b_bytes: Right operand slices.
    l0c_bytes: Accumulators.
    l1_bytes: Operand tiles.
    ub_bytes: Unified buffer of a vector core.
    bt_bytes: Bias table.
    fixpipe_bytes: Parameters of the FixPipe (scales).
    l2_bytes: L2 capacity, shared by all cores.
    hbm_bytes: HBM capacity.
    hbm_bandwidth_bytes_per_s: HBM peak.
    fractal_rows: Rows of a fractal; M and N are padded to it.
    c0_bytes: Depth of a fractal in bytes; K is padded to it.
    ub_alignment_bytes: Alignment of UB addresses.
    l1_alignment_bytes: Alignment of L1 addresses.
    l0_alignment_bytes: Alignment of L0A and L0B addresses.
    l0c_alignment_bytes: Alignment of L0C addresses.
    bt_alignment_bytes: Alignment of BT addresses.
    fixpipe_alignment_bytes: Alignment in the FixPipe buffer.
    gm_alignment_bytes: Runs in GM aligned to it reach full bandwidth.
    ub_bank_groups: Groups of UB banks: each serves one access a cycle (2201), two
      reads or a read and a write (3510).
    ub_banks_per_group: Banks of a group.
    ub_bank_bytes: One bank.
    cube_macs_per_cycle: Multiply-accumulates a cycle and AIC by operand dtype.
    vector_bytes_per_cycle: Simple vector arithmetic, bytes a cycle and AIV.
    exp_elements_per_cycle: exp and its like, elements a cycle and AIV.
    l1_to_l0a_bytes_per_cycle: MTE1.
    l1_to_l0b_bytes_per_cycle: MTE1.
    l2_to_core_bytes_per_cycle: MTE2, data in L2.
    hbm_to_core_bytes_per_cycle: MTE2 of a cube core, data in HBM, all cores busy;
      None: unknown.
    core_to_l2_bytes_per_cycle: Writes of a core into L2; None: unknown.
    few_cores_gm_bytes_per_cycle: What a cube core writes to GM through FixPipe, and
      loads from HBM through MTE2, while at most half of the cores work: more than
      its share of `l0c_to_gm_bytes_per_cycle`, less than L2 delivers; None: unknown.
    l0c_to_l1_bytes_per_cycle: FixPipe, counted in bytes written.
    ub_to_l1_bytes_per_cycle: MTE3; 0 where the path does not exist.
    l0c_to_gm_bytes_per_cycle: FixPipe, counted in bytes written.
    l0c_to_ub_bytes_per_cycle: FixPipe; 0 where the path does not exist.
    gm_to_ub_bytes_per_cycle: MTE2 of a vector core.
    ub_to_gm_bytes_per_cycle: MTE3.
    bt_load_bytes_per_cycle: Bias into BT.
    launch_overhead_us: Device time of a launch of cube cores that does nothing.
    vector_launch_us: The same of vector cores alone, the gap to the kernel before
      included.
    mixed_launch_us: What starting cube and vector cores together costs beside
      `launch_overhead_us`.
    sustained_cube_fraction: Share of the cube rate that full waves hold.
    sustained_hbm_fraction: Share of the HBM peak that loads into L1 reach; None:
      unknown.
  """

  vendor: ClassVar[str] = "huawei"

  architecture: int
  aic_count: int
  aiv_count: int
  clock_hz: float
  l0a_bytes: int
  l0b_bytes: int
  l0c_bytes: int
  l1_bytes: int
  ub_bytes: int
  bt_bytes: int
  fixpipe_bytes: int
  l2_bytes: int
  hbm_bytes: int
  hbm_bandwidth_bytes_per_s: float
  fractal_rows: int
  c0_bytes: int
  ub_alignment_bytes: int
  l1_alignment_bytes: int
  l0_alignment_bytes: int
  l0c_alignment_bytes: int
  bt_alignment_bytes: int
  fixpipe_alignment_bytes: int
  gm_alignment_bytes: int
  ub_bank_groups: int
  ub_banks_per_group: int
  ub_bank_bytes: int
  cube_macs_per_cycle: FrozenMap[str, int]
  vector_bytes_per_cycle: int
  exp_elements_per_cycle: int
  l1_to_l0a_bytes_per_cycle: int
  l1_to_l0b_bytes_per_cycle: int
  l2_to_core_bytes_per_cycle: int
  hbm_to_core_bytes_per_cycle: int | None
  core_to_l2_bytes_per_cycle: int | None
  few_cores_gm_bytes_per_cycle: int | None
  l0c_to_l1_bytes_per_cycle: int
  ub_to_l1_bytes_per_cycle: int
  l0c_to_gm_bytes_per_cycle: int
  l0c_to_ub_bytes_per_cycle: int
  gm_to_ub_bytes_per_cycle: int
  ub_to_gm_bytes_per_cycle: int
  bt_load_bytes_per_cycle: int
  launch_overhead_us: float
  vector_launch_us: float
  mixed_launch_us: float
  sustained_cube_fraction: float
  sustained_hbm_fraction: float | None

  @property
  def peak_flops(self) -> FrozenMap[str, float]:
    """2 · AICs · multiply-accumulates a cycle · clock, in FLOP/s by dtype."""
    return FrozenMap(
      {
        dtype: 2 * self.aic_count * macs * self.clock_hz
        for dtype, macs in self.cube_macs_per_cycle.items()
      }
    )

  @property
  def l2_bandwidth_bytes_per_s(self) -> float:
    """L2 to all AICs together: the per-core rate times cores and clock."""
    return self.l2_to_core_bytes_per_cycle * self.aic_count * self.clock_hz

  @property
  def memory_bandwidth_bytes_per_s(self) -> float:
    """Peak bandwidth of the device memory, under one name for both vendors."""
    return self.hbm_bandwidth_bytes_per_s

  @property
  def has_l0c_to_ub(self) -> bool:
    """Whether an accumulator reaches the vector cores without a trip through GM."""
    return self.l0c_to_ub_bytes_per_cycle > 0

  @property
  def vector_cores_per_cube_core(self) -> int:
    """Vector cores that share one cube core's tile (2 on every known part)."""
    return self.aiv_count // self.aic_count
