"""Plots of the sweeps, drawn from records."""
