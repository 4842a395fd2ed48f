"""Environments: Atari and gymnasium behind one interface, frame stacks, action rules."""
