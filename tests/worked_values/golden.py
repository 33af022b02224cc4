"""The values of the course texts, for the tests beside this file.

`hw_profiles/examples/values.json` has them; the tables of what computes them
are beside it and in `reference/examples`.
"""

from hw_profiles.examples.worked_value import worked_values

VALUES = worked_values()
RECOMPUTABLE = frozenset(name for name, value in VALUES.items() if value.recomputable)
