"""Exports of the integer student, one target a file; `bundle` is what they share."""
