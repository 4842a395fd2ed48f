"""How fast students run on a device: one observation at a time, in every runtime."""
