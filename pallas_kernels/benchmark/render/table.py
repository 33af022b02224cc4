"""`--format=table`: aligned columns for a terminal."""

import textwrap
from collections.abc import Sequence

from pallas_kernels.benchmark import rows
from pallas_kernels.benchmark.render import facts

_GAP = "  "

# Sentences break here; tables are as wide as their cells.
_WIDTH = 120


def render(report: rows.Report) -> str:
  """The environment on one line, then each block."""
  parts = [facts.sentence(report.environment)]
  parts += [_block(block) for block in report.blocks]
  return "\n\n".join(parts) + "\n"


def _block(block: rows.Block) -> str:
  lines = [block.title] if block.title else []
  if block.header:
    lines += _grid(block)
  for sentence in block.lines:
    lines += textwrap.wrap(
      sentence, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
  lines += [*block.commands, *block.text]
  return "\n".join(lines)


def _grid(block: rows.Block) -> list[str]:
  widths = [
    max(len(cells[column]) for cells in (block.header, *block.cells))
    for column in range(len(block.header))
  ]

  def line(cells: Sequence[str]) -> str:
    return _GAP.join(
      cell.rjust(width) if name in block.numeric else cell.ljust(width)
      for cell, width, name in zip(cells, widths, block.header, strict=True)
    ).rstrip()

  rule = _GAP.join("-" * width for width in widths)
  lines = [line(block.header), rule]
  for number, cells in enumerate(block.cells):
    if number in block.groups:
      lines.append(block.groups[number])
    lines.append(line(cells))
  return lines
