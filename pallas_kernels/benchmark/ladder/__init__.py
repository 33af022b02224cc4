"""The optimisation ladder of a matmul, from one output a thread to the library's kernel.

cuda_cores   the two lowest steps, which the library has no other use for
steps        every step: what changes, how it runs, what the model says
table        the steps as rows and as a table
page         docs/gemm-ladder.md; `python -m pallas_kernels.benchmark.ladder` prints or writes it
"""
