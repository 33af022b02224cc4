"""The optimisation ladder of a matmul, from one output a thread to the library's kernel.

cuda_cores   the two lowest steps, which the library has no other use for
steps        every step: what changes, how it runs, what the model says
"""
