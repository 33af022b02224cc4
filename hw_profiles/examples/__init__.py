"""The worked examples of the course texts, recomputed through the public functions.

    values.json     each value: where it stands, its inputs, what the text prints
    worked_value    reads it; says whether a result agrees with the text
    topics          the tables of the others, each identifier -> how it is computed

Those about rounding, order and scales are in `reference.examples`.
"""
