"""Export to a self-contained SystemVerilog core."""
