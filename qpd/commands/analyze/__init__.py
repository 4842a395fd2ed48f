"""`qpd analyze ...`, a module for each kind of measurement."""
