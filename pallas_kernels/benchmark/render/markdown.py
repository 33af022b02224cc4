"""`--format=markdown`: the table's blocks for a document."""

from collections.abc import Sequence

from pallas_kernels.benchmark import rows
from pallas_kernels.benchmark.render import facts


def render(report: rows.Report) -> str:
  """The environment as a sentence, then each block: heading, pipe table, list."""
  return f"{_escape(facts.sentence(report.environment))}\n\n{document(report.blocks)}"


def document(blocks: Sequence[rows.Block]) -> str:
  """The blocks alone."""
  parts = []
  for block in blocks:
    if block.title:
      parts.append(f"### {_escape(block.title)}")
    if block.header:
      parts.append("\n".join(_grid(block)))
    lines = (*block.lines, *block.commands)
    if lines:
      parts.append("\n".join(f"- {_escape(line.strip())}" for line in lines))
    if block.text:
      parts.append("\n".join(("```", *block.text, "```")))
  return "\n\n".join(parts) + "\n"


def _grid(block: rows.Block) -> list[str]:
  def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escape(cell) for cell in cells)} |"

  marks = ["---:" if name in block.numeric else "---" for name in block.header]
  lines = [line(block.header), f"| {' | '.join(marks)} |"]
  for number, cells in enumerate(block.cells):
    if number in block.groups:
      # a pipe table has no cell across columns: the line stands in the first
      lines.append(f"| **{_escape(block.groups[number])}** {'| ' * len(block.header)}".rstrip())
    lines.append(line(cells))
  return lines


def _escape(text: str) -> str:
  """`text` with what Markdown would read as a column, emphasis or HTML made plain."""
  for mark in ("\\", "|", "*", "<", "`"):
    text = text.replace(mark, f"\\{mark}")
  return text.replace("_", "\\_")
