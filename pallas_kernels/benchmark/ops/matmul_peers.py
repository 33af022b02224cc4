"""What people would use instead of `matmul`, and what a product of few rows is held against.

    xla        jnp.matmul: cuBLAS on a GPU (in ops/matmul)
    jax_mgpu   the Hopper matmul that JAX ships, in the best of ten of its configs at
               the size next to this one
    stream     no product: one third of B plus another, which moves as many bytes as
               B has, two read for one written, as the quickest of XLA's streams do
               (4.4 TB/s on an H200, copies 3.4)

A peer that is not there, or does not have the call, raises with a sentence.
"""

from typing import TYPE_CHECKING, Any

from pallas_kernels.benchmark.ops.op import Function

if TYPE_CHECKING:
  import jax

PEERS = ("xla", "jax_mgpu", "stream", "plain")
# Those that compute something else than the product that is asked for.
ELSEWHAT = {
  "stream": "reads the operands and multiplies nothing",
  "plain": "a product without the options",
}


def peer(name: str, *, plain: bool) -> Function:
  """One of PEERS but xla, as a function of (a, b, bias).

  Args:
    name: Which.
    plain: Whether the product is without epilogue, of the operands' dtype.

  Raises:
    ImportError: it is not installed.
    NotImplementedError: it has no such call; at once, or when it is traced.
  """
  if name == "stream":
    return _stream
  if name == "plain":
    return _plain
  if not plain:
    raise NotImplementedError(f"peer {name}: its product has no epilogue and no other dtype")
  return _jax_mgpu


def _stream(a: "jax.Array", b: "jax.Array", *rest: Any) -> "jax.Array":
  # no reduction: what empties L2 before a cold run is one, and is told by its name
  del a, rest
  third = b.shape[-2] // 3
  return b[..., :third, :] + b[..., third : 2 * third, :]


def _plain(a: "jax.Array", b: "jax.Array", *rest: Any) -> "jax.Array":
  import pallas_kernels

  del rest
  return pallas_kernels.matmul(a, b)


def _jax_mgpu(a: "jax.Array", b: "jax.Array", bias: None) -> "jax.Array":
  del bias
  try:
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hopper
  except ImportError as error:
    raise ImportError(f"peer jax_mgpu: not part of this JAX ({error})") from error
  rows, columns = a.shape[-2], b.shape[-1]
  if a.ndim != 2 or rows % 256 or columns % 256:
    raise NotImplementedError("peer jax_mgpu: rows and columns that are multiples of 256")
  axis = hopper.MatmulDimension
  # the fastest of ten on an H200 at 256, 1024 and 2048 x 4096 x 12288, 4096 and 8192 cubed
  along, cluster, width = axis.N, None, 8
  if rows <= 256:
    along, width = axis.M, 16
  elif rows >= 2048 and columns >= 8192:
    along, cluster = axis.M, axis.N
  config = hopper.TuningConfig(
    tile_m=128,
    tile_n=128,
    tile_k=64,
    max_concurrent_steps=4,
    grid_minor_dim=axis.M,
    grid_tile_width=width,
    wg_dimension=along,
    cluster_dimension=cluster,
  )
  return hopper.matmul(a, b, None, config=config)
