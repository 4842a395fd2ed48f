"""Statistics: coverage of intervals, and what choosing the best adds."""
