"""Names that the whole library shares, importable without JAX."""

from collections.abc import Mapping

# The implementations an op may have, and what each name means.
IMPLEMENTATIONS: Mapping[str, str] = {
  "mosaic_gpu": "Pallas Mosaic GPU kernel for Hopper: TMA copies, and wgmma for products",
  "triton": "portable Pallas kernel compiled through the Triton lowering",
  "xla": "plain JAX, compiled by XLA (cuBLAS on a GPU)",
  "interpret": "portable Pallas kernel in the Pallas interpreter; slow, for testing",
  "mosaic_gpu_interpret": "Hopper kernel in the Mosaic GPU interpreter; very slow, for testing",
}

# Never chosen unless asked for by name.
INTERPRETERS = ("interpret", "mosaic_gpu_interpret")
