"""The machine: usable cores, memory allocator, and its description in benchmarks."""
