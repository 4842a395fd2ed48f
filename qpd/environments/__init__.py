"""Environments: Atari and gymnasium behind one interface, transitions and action rules."""
