"""Training teachers with the RL Zoo."""
