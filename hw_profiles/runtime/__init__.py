"""What a choice of the runtime costs over many calls and within a whole request."""
