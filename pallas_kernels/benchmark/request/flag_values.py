"""What `--model`, `--request`, `--host` and `--buckets` mean. Loads no JAX."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TypeVar

from hw_profiles import HostTimes, ModelSizes, RequestSizes
from pallas_kernels.benchmark import parsing
from pallas_kernels.benchmark.errors import UsageError
from pallas_kernels.benchmark.ops.attention import FLOAT_DTYPES

_Item = TypeVar("_Item")

DTYPES = FLOAT_DTYPES

# The course texts' case: layers, hidden and ffn are theirs, as are the tokens; heads are those of
# the attention that docs/results measures. They give no vocabulary.
DEFAULT_MODEL = ModelSizes(layers=36, hidden=4096, ffn=12288, heads=32, kv_heads=8)
DEFAULT_REQUEST = RequestSizes(prompt=7239, output=32)
DEFAULT_HOST = HostTimes()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestOptions:
  """The flags that only `--task=request` reads.

  Attributes:
    models: Sizes of models, sweeps written out.
    requests: Tokens and sequences, sweeps written out.
    dtypes: Of weights and activations.
    host: What the host takes.
    buckets: Prompt lengths to pad to; None: powers of two.
  """

  models: tuple[ModelSizes, ...] = (DEFAULT_MODEL,)
  requests: tuple[RequestSizes, ...] = (DEFAULT_REQUEST,)
  dtypes: tuple[str, ...] = DTYPES[:1]
  host: HostTimes = DEFAULT_HOST
  buckets: tuple[int, ...] | None = None


def read(
  *,
  model: Sequence[str] | None,
  request: Sequence[str] | None,
  dtype: Sequence[str] | None,
  host: str | None,
  buckets: Sequence[str] | None,
) -> RequestOptions:
  """The texts of the flags, read; None: not given.

  Raises:
    UsageError: one is wrong, or a prompt is longer than every bucket.
  """
  found = RequestOptions()
  if model:
    found = dataclasses.replace(
      found,
      models=_each(
        parsing.shapes(text, ModelSizes, example=DEFAULT_MODEL.describe(), flag="model")
        for text in model
      ),
    )
  if request:
    example = DEFAULT_REQUEST.describe()
    found = dataclasses.replace(
      found,
      requests=_each(
        parsing.shapes(text, RequestSizes, example=example, flag="request") for text in request
      ),
    )
  if dtype is not None:
    found = dataclasses.replace(found, dtypes=parsing.choose("dtype", dtype, DTYPES))
  if host is not None:
    (times,) = parsing.tiles(host, HostTimes, example=DEFAULT_HOST.describe(), flag="host")
    found = dataclasses.replace(found, host=times)
  if buckets is not None:
    found = dataclasses.replace(found, buckets=_buckets(buckets, found.requests))
  return found


def _each(items: Iterable[tuple[_Item, ...]]) -> tuple[_Item, ...]:
  """What every text of a repeatable flag stands for, without repeats."""
  return tuple(dict.fromkeys(item for several in items for item in several))


def _buckets(texts: Sequence[str], requests: Sequence[RequestSizes]) -> tuple[int, ...]:
  if not texts:
    raise UsageError("--buckets: expected at least one length, for example 512,2048,8192")
  sizes = tuple(sorted({parsing.positive("buckets", text, example=2048) for text in texts}))
  longest = max(request.prompt for request in requests)
  if longest > sizes[-1]:
    raise UsageError(
      f"--buckets={','.join(texts)}: a prompt has {longest} tokens; expected a bucket of at least"
      " as many"
    )
  return sizes
