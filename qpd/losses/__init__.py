"""Losses: Eq. 1 to 3 of the QPD paper, and the PPO term beyond it."""
