"""Sizes and forward passes per second."""
