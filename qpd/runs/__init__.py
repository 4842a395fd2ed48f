"""Run directories: recipe, manifest, metrics, checkpoints, and where numbers are logged."""
