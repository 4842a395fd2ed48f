"""Errors that a user can fix: stable codes, one line each, safe to print."""
