"""Benchmarks of students on a device: one observation at a time, in every runtime."""
