"""Emulations that follow the order of a float32 computation to the bit.

The rest of `reference` says what is right and how far a float32 result may be
from it. These say which result one order gives, so that a kernel whose order
is known can be held to its bits.
"""
