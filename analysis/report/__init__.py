"""One run as one HTML page that needs nothing else: no network, no file beside it."""
