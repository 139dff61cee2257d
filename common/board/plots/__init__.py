"""Plots of a board: the sweeps and the overview, drawn from records."""
