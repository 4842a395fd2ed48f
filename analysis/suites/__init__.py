"""Agents quantized as they are: tables and figures of QuaRL's questions, from suites."""
