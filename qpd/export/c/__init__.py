"""Export to self-contained C99."""
