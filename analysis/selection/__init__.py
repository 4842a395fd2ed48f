"""The smallest controller at parity: cells of bits and widths, and the rules that choose one."""
