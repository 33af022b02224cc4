"""Calls of many sizes from few compiled programs: a cache of them, padding to buckets, the choice.

RowPrograms            a function of rows, run at any number of them: "specialised" compiles each
                       number, "bucketed" pads to representative ones, "general" walks blocks
choose                 which of the three takes least time over so many calls, compiling included
ExecutableCache        what holds the programs: least recently used goes first, every use counted
"""

from pallas_kernels.runtime.choice import choose
from pallas_kernels.runtime.executable_cache import ExecutableCache
from pallas_kernels.runtime.row_programs import STRATEGIES, RowPrograms, RowsUse, Strategy

__all__ = [
  "STRATEGIES",
  "ExecutableCache",
  "RowPrograms",
  "RowsUse",
  "Strategy",
  "choose",
]
