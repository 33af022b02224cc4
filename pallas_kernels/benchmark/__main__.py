"""`python -m pallas_kernels.benchmark`, the same program as `pallas-bench`."""

from pallas_kernels.benchmark import main

if __name__ == "__main__":
  main.run()
