"""Building blocks of the Hopper kernels: what any TMA-and-wgmma kernel needs.

tma      how matrices lie in shared memory, what global arrays must be
ring     stages between a memory warpgroup and its consumers
refusals reasons against running one that do not depend on the op
store    the way of a result block out, through staging slots
fence    writes to shared memory, told by a barrier's arrival alone
"""
