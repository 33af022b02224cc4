"""The course texts' worked examples of rounding, order and scales, recomputed.

`numerics.COMPUTED` says how; the values themselves, with those of the device
models, are in `hw_profiles/examples/values.json`.
"""
