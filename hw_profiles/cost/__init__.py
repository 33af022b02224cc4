"""What moving and computing cost: traffic, bandwidth, overlap."""
