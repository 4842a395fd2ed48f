"""Grids of runs on Ray: grid file, cells, shared play, worker processes, display."""
