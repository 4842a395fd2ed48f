"""Benchmarks of speed and memory, each beside a named baseline: see README.md here."""
