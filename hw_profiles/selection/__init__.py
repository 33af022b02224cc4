"""Choosing between implementations: what can run, what it would take, what was measured."""
