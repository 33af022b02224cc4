"""Predicted times against published and own measurements."""
