"""Faults injected into real `qpd run` processes; `python -m faults` runs all that docs/faults.md
counts, tests/test_faults.py a few of each kind.
"""
