"""Prints docs/gemm-ladder.md as it should be; `--write` writes it."""

import argparse

from pallas_kernels.benchmark.ladder import page


def main() -> None:
  """The command."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--write", action="store_true", help="write the page")
  arguments = parser.parse_args()
  if arguments.write:
    page.PAGE.write_text(page.current(), encoding="utf-8")
  else:
    print(page.current(), end="")


if __name__ == "__main__":
  main()
