"""What a tile needs on chip, and what a device has."""
