"""Attention: which keys a query sees, the float64 definition, its gradients, bound and checks."""
