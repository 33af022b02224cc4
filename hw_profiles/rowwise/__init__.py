"""Ops that treat every row alike: swiglu, quantisation, rms_norm, and the transpose."""
