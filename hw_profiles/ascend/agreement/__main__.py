"""Prints how far planner and compiler agree on recorded plans; `--write` writes the document."""

import argparse

from hw_profiles.ascend.agreement.document import text, write_document


def main() -> None:
  """The program."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--write", action="store_true", help="write docs/ascend-agreement.md")
  if parser.parse_args().write:
    write_document()
  else:
    print(text())


if __name__ == "__main__":
  main()
