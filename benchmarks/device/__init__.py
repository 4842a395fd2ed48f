"""On the device: bytes, latency and agreement of exported policies."""
