"""Errors that a user can mend: stable codes, one line each, safe to print."""
