"""All programs of the fusion study, by name."""

from pallas_kernels.benchmark.fusion import chain, norm, transposes
from pallas_kernels.benchmark.fusion.program import Program

PROGRAMS: dict[str, Program] = {
  program.name: program for family in (chain, norm, transposes) for program in family.programs()
}
