"""Play: transitions/s of rollouts, replay and evaluation."""
