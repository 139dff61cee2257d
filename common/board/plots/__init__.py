"""Plots of a board from records: the sweeps and the overview."""
