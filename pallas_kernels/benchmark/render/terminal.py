"""Blocks as tables of `rich`, on a terminal, where it is installed (the [report] extra)."""

import importlib.util
import io
import shutil
import sys

from pallas_kernels.benchmark import rows
from pallas_kernels.benchmark.render import facts


def is_wanted() -> bool:
  """Whether stdout is a terminal and `rich` is installed."""
  terminal = sys.stdout is not None and sys.stdout.isatty()
  return terminal and importlib.util.find_spec("rich") is not None


def render(report: rows.Report, *, width: int | None = None, colour: bool = True) -> str:
  """The environment on one line, then each block as a table.

  Args:
    report: What a task returned.
    width: Columns; None: the terminal's.
    colour: Whether failed and passed checks are coloured.
  """
  from rich import box
  from rich.console import Console
  from rich.table import Table
  from rich.text import Text

  text = io.StringIO()
  console = Console(
    file=text,
    force_terminal=colour,
    no_color=not colour,
    width=width or shutil.get_terminal_size().columns,
    highlight=False,
  )
  console.print(Text(facts.sentence(report.environment)))
  for block in report.blocks:
    console.print()
    if block.title:
      console.print(Text(block.title, style="bold"))
    if block.header:
      table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
      for name in block.header:
        table.add_column(
          Text(name), justify="right" if name in block.numeric else "left", overflow="fold"
        )
      for number, cells in enumerate(block.cells):
        if number in block.groups:
          table.add_row(Text(block.groups[number], style="italic"))
        table.add_row(*(Text(cell, style=_style(cell)) for cell in cells))
      console.print(table)
    for line in (*block.lines, *block.commands, *block.text):
      console.print(Text(line), soft_wrap=line in block.commands)
  return text.getvalue()


def _style(cell: str) -> str:
  return {rows.FAILED: "bold red", rows.PASSED: "green", rows.DIFFERS: "yellow"}.get(cell, "")
