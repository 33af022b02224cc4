"""What a compiled tile wants of each memory, as the models of the compiler say it."""

import dataclasses

from hw_profiles.ascend.targets import AscendTarget
from hw_profiles.frozen_map import FrozenMap


@dataclasses.dataclass(frozen=True)
class CompilerNeeds:
  """The least that Huawei's compiler gets by with.

  Where there is room it takes more UB: temporaries then share addresses only
  with what is long dead.

  Attributes:
    l1_bytes: Operands of the cube core.
    l0c_bytes: Accumulators.
    ub_bytes: Of one vector core.
    role_bytes: Bytes of operands and accumulators by role, as `AscendPlan` names
      them; empty where an op has none.
  """

  l1_bytes: int
  l0c_bytes: int
  ub_bytes: int
  role_bytes: FrozenMap[str, int] = dataclasses.field(default_factory=FrozenMap)

  def exceeded(self, target: AscendTarget) -> tuple[str, ...]:
    """The memories of a target that this is too much for."""
    wanted = {"L1": self.l1_bytes, "L0C": self.l0c_bytes, "UB": self.ub_bytes}
    return tuple(space for space, needed in wanted.items() if needed > target.capacity_bytes(space))
