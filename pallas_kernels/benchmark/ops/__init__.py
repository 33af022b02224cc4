"""The ops of `--kernel`: each is a file here, and a line below."""

from pallas_kernels.benchmark.ops.decode_attention import DECODE_ATTENTION
from pallas_kernels.benchmark.ops.flash_attention import FLASH_ATTENTION
from pallas_kernels.benchmark.ops.gated_matmul import GATED_MATMUL
from pallas_kernels.benchmark.ops.matmul import MATMUL
from pallas_kernels.benchmark.ops.op import AnyOp, options_of
from pallas_kernels.benchmark.ops.quantize_matmul import QUANTIZE_MATMUL
from pallas_kernels.benchmark.ops.quantize_rows import QUANTIZE_ROWS
from pallas_kernels.benchmark.ops.quantized_matmul import QUANTIZED_MATMUL
from pallas_kernels.benchmark.ops.rms_norm import RMS_NORM
from pallas_kernels.benchmark.ops.swiglu import SWIGLU
from pallas_kernels.benchmark.ops.swiglu_quantize import SWIGLU_QUANTIZE
from pallas_kernels.benchmark.ops.transpose import TRANSPOSE

_OPS: dict[str, AnyOp] = {}

COMPOSED = {"quantize_matmul": ("quantize_rows", "quantized_matmul")}
"""Public functions that only run, each with the ops that it is planned as."""


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
register(GATED_MATMUL)
register(QUANTIZED_MATMUL)
register(QUANTIZE_MATMUL)
register(FLASH_ATTENTION)
register(DECODE_ATTENTION)
register(SWIGLU)
register(SWIGLU_QUANTIZE)
register(QUANTIZE_ROWS)
register(RMS_NORM)
register(TRANSPOSE)
