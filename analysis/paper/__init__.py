"""The QPD paper's numbers beside ours, and which of its claims hold."""
