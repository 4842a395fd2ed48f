"""Numerics: compute dtype, random seeds, and the record of what decides the last bits."""
