"""Quantizers, the training-time simulation, and the integers that both stand for."""
