"""SAC in half precision: its six methods as pure functions, each beside the naive form."""
