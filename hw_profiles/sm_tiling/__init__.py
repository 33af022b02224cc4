"""How a tile is shared out inside one SM, and what its shared memory makes of that."""
