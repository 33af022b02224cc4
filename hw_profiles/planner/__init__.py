"""From a problem and a tile configuration to what fits, what binds and what it costs."""
