"""Attention, of many queries and of a few on a cache: problem, tile, what a tile needs."""
