"""Files written atomically and read within bounds: JSON, tensors, checksums."""
