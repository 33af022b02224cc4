"""Ops that work on each row: quantisation, SwiGLU, RMS normalisation; and the transpose."""
