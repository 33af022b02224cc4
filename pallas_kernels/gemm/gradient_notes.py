"""What `explain` says of the gradients of a product: each is a product of its own shape."""

import jax

from pallas_kernels import choice
from pallas_kernels.choice import Choice
from pallas_kernels.device import TargetDevice
from pallas_kernels.gemm import differentiable, implementations
from pallas_kernels.gemm.differentiable import GradientProduct
from pallas_kernels.gemm.operands import Operands
from pallas_kernels.gemm.request import GemmRequest


def gradient_notes(
  request: GemmRequest,
  operands: Operands,
  device: TargetDevice,
  *,
  left: str,
  right: tuple[str, ...],
) -> tuple[str, ...]:
  """Who runs the gradients of a request on operands, or on their shapes.

  Args:
    request: Of the call.
    operands: A, and what it is multiplied with.
    device: Where it will run.
    left: What the caller knows A as.
    right: The same of every B.
  """
  sizes = operands.sizes(request.transposes)
  d_s = jax.ShapeDtypeStruct((sizes.batch, sizes.m, sizes.n), request.dtype)
  a, bs = operands.a, operands.bs
  of_a = differentiable.of_left(request, (d_s,) * len(bs), a, bs)
  of_b = differentiable.of_right(request, d_s, a, bs[0])
  return (
    choice.gradient_note(lambda: _choose(of_a, device), left),
    choice.gradient_note(lambda: _choose(of_b, device), *right),
  )


def _choose(product: GradientProduct, device: TargetDevice) -> Choice:
  operands = Operands.of_pairs(product.xs, product.ys)
  return implementations.choose_summed(product.request, operands, device)
