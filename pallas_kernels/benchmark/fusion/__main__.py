"""Prints docs/fusion-study.md as it should be; `--write` writes it."""

from pallas_kernels.benchmark import kept_pages
from pallas_kernels.benchmark.fusion import page

if __name__ == "__main__":
  kept_pages.command(__doc__, page.PAGE, page.current)
