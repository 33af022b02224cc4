"""The ops of `--kernel`: each is a file here, and a line below."""

from pallas_kernels.benchmark.ops.matmul import MATMUL
from pallas_kernels.benchmark.ops.op import AnyOp, options_of

_OPS: dict[str, AnyOp] = {}


def register(op: AnyOp) -> None:
  """Makes an op one of `--kernel`.

  Raises:
    ValueError: its name is taken, or one of its options means another kind of
      flag with an op that is there.
  """
  if op.name in _OPS:
    raise ValueError(f"op {op.name!r} is registered already")
  for other in _OPS.values():
    theirs = options_of(other.options_class)
    for name, option in options_of(op.options_class).items():
      if name in theirs and theirs[name].boolean is not option.boolean:
        raise ValueError(
          f"option {name!r} of {op.name}: yes or no for one op, a value for {other.name}; "
          "expected one kind of flag"
        )
  _OPS[op.name] = op


def names() -> tuple[str, ...]:
  """Every op, in the order they were registered."""
  return tuple(_OPS)


def get(name: str) -> AnyOp:
  """The op of that name."""
  return _OPS[name]


register(MATMUL)
