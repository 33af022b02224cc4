"""Element sizes by dtype name: the planner's view of a dtype, without NumPy or JAX."""

_SIZE_BYTES = {
  "float64": 8,
  "float32": 4,
  "bfloat16": 2,
  "float16": 2,
  "float8_e4m3fn": 1,
  "float8_e5m2": 1,
  "int32": 4,
  "int8": 1,
}


def size_bytes(dtype: str, *, name: str = "dtype") -> int:
  """Bytes of one element of `dtype`; `name` is what the caller calls it, for the message.

  Raises:
    ValueError: `dtype` is not one the models know.
  """
  try:
    return _SIZE_BYTES[dtype]
  except (KeyError, TypeError):
    known = ", ".join(_SIZE_BYTES)
    raise ValueError(f"{name}={dtype!r}: expected one of {known}") from None
