"""Writes to shared memory, made visible to wgmma and TMA without a barrier of the warpgroup."""

from typing import Any

from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.compat import nvvm


def fence_smem(*, interpreted: bool) -> None:
  """What `commit_smem` does, without its barrier: only for what a barrier's arrival follows.

  The generic and the asynchronous proxy see shared memory each in its own order,
  and the fence orders them for the thread that runs it. A wgmma or a copy may then
  read once all 128 threads have fenced. `commit_smem` makes them meet for that
  (BAR.SYNC). An arrival at a Mosaic barrier needs no such meeting: every thread of
  the warpgroup arrives by itself, the barrier counts 128 for each arrival it was
  made for, and who waits for it sees what each had done before.

  So is it with the barriers that Mosaic puts around every load and store of shared
  memory, and before every copy, unless `unsafe_no_auto_barriers` is set. A kernel
  may set it where
    - no warpgroup reads with ordinary loads what it wrote itself;
    - what it writes was last read by others, or by products or copies, whose end a
      barrier has told it: one at which all threads of the reading warpgroup arrived;
    - what copies and products read was fenced by each thread before it arrived at a
      barrier that the issuing thread waited for, or else by `commit_smem`.

  Waits for copies to global memory and for semaphores keep their barriers.

  Args:
    interpreted: The interpreter runs a warpgroup as one thread, and its race
      detection knows `commit_smem`.
  """
  if interpreted:
    plgpu.commit_smem()
    return

  @plgpu.inline_mgpu()
  def fence(_: Any) -> None:
    nvvm.fence_proxy(nvvm.ProxyKind.async_shared, space=nvvm.SharedSpace.shared_cta)

  fence()
