"""Quantized policies as integers: weights, requantization and the engine that runs them."""
