"""Agents quantized as they are, without a student: their networks, and suites of their games."""
