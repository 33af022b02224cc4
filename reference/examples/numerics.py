"""Float sums, merges and units in the last place; online softmax; codes of 8 bits; legality."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal

import numpy as np

import reference

Inputs = Mapping[str, Any]
Computed = Mapping[str, Callable[[Inputs], Any]]


def _split(inputs: Inputs) -> reference.SplitReport:
  mode: Literal["nearest_even", "truncate"] = (
    "nearest_even" if inputs.get("rounding") == "rne" else "truncate"
  )
  (report,) = reference.split_report(
    reference.sine_row(inputs["width"], mode=mode), (inputs["splits"],)
  )
  return report


def _merged(inputs: Inputs) -> reference.MergeResults:
  row = reference.sine_row(inputs["width"]).astype(np.float32)
  return reference.merge_orders(reference.split_sums(row * row, inputs["splits"]))


def _associated(inputs: Inputs) -> float:
  small = 2.0**-24
  terms = np.array([1, small, small], np.float32)
  # from the right, the two small terms are added first
  return float(reference.sequential_sum(terms if inputs["which"] == "left" else terms[::-1]))


def _softmax(inputs: Inputs) -> reference.SoftmaxState:
  return reference.online_softmax(inputs["scores"], inputs["values"])


def _codes(inputs: Inputs) -> reference.BlockCodes:
  return reference.block_codes([inputs["first"], inputs["rowmax"]], block=2)


def _mean_square(inputs: Inputs) -> float:
  return float(reference.mean_square(np.full(inputs["n"], math.sqrt(inputs["s"] / inputs["n"])))[0])


COMPUTED: Computed = {
  "s004.assoc.left": _associated,
  "s004.assoc.right": _associated,
  "s004.ulp.exact_sum": lambda i: _split(i).exact,
  "s004.ulp.mean_square": _mean_square,
  **{f"s004.ulp.offset_{n}": lambda i: _split(i).offset_ulp for n in (1, 2, 4, 8, 16, 32)},
  **{f"s004.ulp.total_{n}": lambda i: _split(i).total for n in (1, 2, 4, 8, 16, 32)},
  "s004.ulp.gap_8_vs_1": lambda i: _split(i).gap_ulp,
  "s004.ulp.rel_gap": lambda i: _split(i).relative_gap,
  "s004.ulp.scale_gap": lambda i: _split(i).scale_gap_ulp,
  "s004.ulp.first_output_gap": lambda i: _split(i).first_output_gap_ulp,
  "s004.ulp.max_partial_8": lambda i: _split(i).largest_partial,
  "s004.ulp.orders": lambda i: reference.merge_orders(np.ones(i["n"], np.float32)).orders,
  "s004.ulp.distinct": lambda i: len(_merged(i).results),
  "s004.ulp.spread": lambda i: _merged(i).spread_ulp,
  "s004.ulp.rne_offset_1": lambda i: _split(i).offset_ulp,
  "s004.ulp.rne_offset_8": lambda i: _split(i).offset_ulp,
  "s004.ex5-6.l": lambda i: float(_softmax(i).total),
  "s004.ex5-6.u": lambda i: float(_softmax(i).weighted),
  "s004.ex5-6.out": lambda i: float(_softmax(i).output),
  "s004.ex5-6.r": lambda i: float(
    reference.rescale(reference.softmax_state([i["a"]], [1]), Fraction(i["b"]))
  ),
  "s004.legality.silu_split": lambda i: float(
    reference.activation_of_parts([i["a"], i["b"]]).difference
  ),
  "s004.ex5-7.scaled": lambda i: float(reference.block_codes([i["x"], i["mx"]], block=2).scaled[0]),
  "s004.ex5-7.q_full": lambda i: float(_codes(i).codes[0]),
  "s004.ex5-7.dq_full": lambda i: float(_codes(i).values[0]),
  "s004.ex5-7.q_first_block": lambda i: float(_codes(i).codes[0]),
  "s004.ex5-7.dq_first_block": lambda i: float(_codes(i).values[0]),
  # what a row scale loses of 1 beside the 10 of the example
  "s004.ex5-7.diff": lambda i: (
    i["a"] - float(reference.block_codes([i["a"], 10], block=2).values[0])
  ),
}
