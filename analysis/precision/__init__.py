"""Training in few bits of floating point: returns, skipped updates, gradients, bytes."""
