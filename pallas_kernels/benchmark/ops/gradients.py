"""A result with the gradients of its operands: how an op runs it, and how it is judged.

The gradient of a result comes from the result, through the rest of the network
and a loss; a step of training has the forward pass behind it when it is there.
Here it is an operand, which XLA would know beforehand: it computed swiglu and
its gradients in one kernel that passes over memory 6 times, where a step of
training has two, of 3 and 5 passes (H200: 0.75 of their time, at the same rate
of memory). So every program of both, ours and peers', has it behind the result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pallas_kernels.benchmark.ops.op import Function
from pallas_kernels.benchmark.ops.verdict import Verdict, named, together, verdict


def with_gradients(forward: Function) -> Function:
  """(out, gradients of the operands) of operands of which the last is the gradient of out.

  It is read once out is there: see above.
  """

  def run(*operands: Any) -> Any:
    import jax

    *inputs, d_out = operands
    out, pull = jax.vjp(forward, *inputs)
    out, d_out = behind(out, d_out)
    return (out, *(x for x in pull(d_out.astype(out.dtype)) if x is not None))

  return run


def behind(*values: Any) -> Any:
  """The values, each there once all of them are: XLA fuses nothing across this."""
  import jax

  return jax.lax.optimization_barrier(values)


def with_gradients_judged(
  of_result: Verdict,
  gradients: Sequence[Any],
  *,
  ran: str,
  bounds: Callable[[], Mapping[str, Any]],
) -> Verdict:
  """The verdict of a result and of its operands' gradients.

  Args:
    of_result: Of the result.
    gradients: As computed; those of a batch are not judged.
    ran: What computed them; nor are those of a peer.
    bounds: What each may be, by the operand's name; asked for only if judged.
  """
  import reference
  from pallas_kernels import names

  if ran not in names.IMPLEMENTATIONS:
    note = f"gradients not checked: what {ran} rounds on the way is not known"
    return together((of_result,), (note,))
  if any(gradient.ndim > 2 for gradient in gradients):
    return together((of_result,), ("gradients not checked: their bound is of one product",))
  found = [named(of_result, "out")]
  for (name, bound), gradient in zip(bounds().items(), gradients, strict=True):
    judged = verdict(reference.check_within(gradient, bound.round(gradient.dtype)))
    found.append(named(judged, f"gradient of {name}"))
  return together(found)
