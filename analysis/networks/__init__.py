"""Features, outputs and weights of networks: tables and figures."""
