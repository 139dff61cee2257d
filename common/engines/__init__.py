"""Distribute a sweep over the devices of this machine or of a cluster."""
