"""Chains of operators and their fusions: bytes moved, launches, how long tensors live."""
