"""The shipped recipes; see `qpd recipes`."""
