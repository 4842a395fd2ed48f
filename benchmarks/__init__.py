"""Speed and memory, measured beside a named baseline: see README.md here."""
