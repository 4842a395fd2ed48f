"""What the frames of a batch have in common, multiplied once."""
