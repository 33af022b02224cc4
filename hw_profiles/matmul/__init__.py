"""The matmul: C = epilogue(A·B + bias), what it is, how it is tiled, what a tile needs."""
