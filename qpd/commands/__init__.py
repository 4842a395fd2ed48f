"""The commands of `qpd`: each parses, calls one function and prints; qpd/cli.py registers them."""
