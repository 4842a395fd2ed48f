"""Sweeps: grids of runs on Ray, with grid file, cells, shared play, workers and display."""
