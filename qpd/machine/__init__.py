"""The machine: usable cores, memory allocator, and what a benchmark says of it."""
