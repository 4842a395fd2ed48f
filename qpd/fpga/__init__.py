"""Students on FPGAs: simulated, synthesised, placed and routed by open tools."""
