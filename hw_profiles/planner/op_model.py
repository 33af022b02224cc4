"""What the planner asks of an op: the interface to add one by.

An op is a problem class, a config class and, for each way its kernels work (a
schedule) on a vendor's cores, what a tile needs and does there. Modules can be
schedules: see `hw_profiles.matmul`, which is one op, and `op_registry`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from hw_profiles.capacity.buffers import Buffer, Shortfall
from hw_profiles.capacity.residency import Residency
from hw_profiles.cost.device_time import DeviceTime
from hw_profiles.cost.npu_time import NpuWork
from hw_profiles.cost.sm_time import SmWork
from hw_profiles.cost.wave import Wave
from hw_profiles.frozen_map import FrozenMap
from hw_profiles.profile import GpuProfile, NpuProfile
from hw_profiles.tile_config import TileConfig, TileFields

ProblemT = TypeVar("ProblemT")
ConfigT = TypeVar("ConfigT", bound=TileConfig)
_Problem = TypeVar("_Problem", contravariant=True)
_Config = TypeVar("_Config", contravariant=True, bound=TileConfig)
_Device = TypeVar("_Device", contravariant=True)


class Traffic(Protocol):
  """Working set and traffic of a tiled op at its working buffers; an op adds its parts."""

  @property
  def working_set_bytes(self) -> int:
    """What one program keeps in its working buffers."""
    ...

  @property
  def total_bytes(self) -> int:
    """Bytes between the working buffers and the next tier, all programs together."""
    ...

  @property
  def intensity(self) -> float:
    """FLOP per byte of `total_bytes`; 0 where nothing moves."""
    ...

  @property
  def grid(self) -> tuple[int, ...]:
    """Tiles along each axis that is cut."""
    ...


@dataclasses.dataclass(frozen=True)
class Execution:
  """How a tile that fits runs.

  Attributes:
    work: Amounts by resource, whose class says on whose cores; or the time itself
      of an op that has its own way of combining them.
    resident_blocks: Blocks on an SM; on Ascend tiles a core works on at once.
    residency: The SM's residency in full; None on Ascend.
    binding: The resources that leave no room for more.
    waves: Rounds at `resident_blocks` an SM, one tile an Ascend core.
    traffic_bytes: Bytes of the whole problem by tier.
    notes: Placement, fallbacks, reuse, padding.
  """

  work: SmWork | NpuWork | DeviceTime
  resident_blocks: int
  residency: Residency | None
  binding: tuple[str, ...]
  waves: Wave
  traffic_bytes: FrozenMap[str, int]
  notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Demand:
  """What a tile needs, whether or not it fits.

  Attributes:
    buffers: Everything it keeps on chip, and its workspace.
    traffic: At the working buffers.
    tiles: Tiles of the whole problem.
    cores: Cores that they are dealt out to.
    execution: How the tile runs; called only where nothing falls short.
    notes: What to say of the tile on this device, fit or not.
    assumptions: What the op's estimate rests on, beside the device's rates.
    time_assumptions: What is taken of the device and its launches, where the
      time is not that of `sm_time` or `npu_time`; None: what these assume.
  """

  buffers: tuple[Buffer, ...]
  traffic: Traffic
  tiles: int
  cores: int
  execution: Callable[[], Execution]
  notes: tuple[str, ...] = ()
  assumptions: tuple[str, ...] = ()
  time_assumptions: tuple[str, ...] | None = None


class ScheduleModel(Protocol[_Problem, _Config, _Device]):
  """One way of running an op on one vendor's cores; a module or an object.

  Attributes:
    NAME: What `schedule=` calls it.
  """

  NAME: str

  def unsupported(self, problem: _Problem, device: _Device, /) -> tuple[Shortfall, ...]:
    """Devices and dtypes that the schedule does not do: kind "unsupported"."""
    ...

  def shortfalls(
    self, problem: _Problem, config: _Config, device: _Device, /
  ) -> tuple[Shortfall, ...]:
    """Rules that the tile breaks and memories it overfills: "shape", then "capacity"."""
    ...

  def demand(self, problem: _Problem, config: _Config, device: _Device, /) -> Demand:
    """What the tile needs, whether or not it fits, and how it would run."""
    ...


class OpModel(Protocol[_Problem, _Config]):
  """One op.

  Attributes:
    name: As users call it, for example "matmul".
    problem_class: By which `plan` and `rank` find the op. It may have an
      `op_name`: what a problem is called where measured times are kept.
    config_class: What a tile of it is.
  """

  name: str
  problem_class: type[Any]
  config_class: type[Any]

  @property
  def gpu_schedules(self) -> Sequence[ScheduleModel[_Problem, _Config, GpuProfile]]:
    """On an SM, in order of preference; empty: not planned there.

    The planner takes the fastest that runs the tile, the first of equals.
    """
    ...

  @property
  def npu_schedules(self) -> Sequence[ScheduleModel[_Problem, _Config, NpuProfile]]:
    """The same on Ascend cores."""
    ...

  def candidates(
    self, problem: _Problem, device: GpuProfile | NpuProfile, schedule: str, /
  ) -> Iterable[Any]:
    """Configs worth comparing under one schedule; `rank` drops those that do not fit."""
    ...

  def tile_fields(self, problem: _Problem, config: _Config, /) -> TileFields:
    """Every field of a config that a remedy may change, likeliest first."""
    ...
