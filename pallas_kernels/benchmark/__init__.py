"""`pallas-bench`: what a tile plan costs, whether it fits, and whether the kernel is right.

`python -m pallas_kernels.benchmark` is the same program. `main.run` is where it
starts, `flags` what it takes, `tasks` what it does, `render` how it prints.
"""
