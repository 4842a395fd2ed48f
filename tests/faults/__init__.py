"""Faults injected into real `qpd run` processes.

`python -m tests.faults` runs all that docs/faults.md counts,
tests/faults/test_faults.py a few of each kind.
"""
