"""Distillation: samples/s of training, and what settings are worth."""
