"""Returns: statistics, tables and figures."""
