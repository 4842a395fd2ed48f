"""Run directories as tables."""
