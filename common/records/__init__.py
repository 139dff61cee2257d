"""Records of measurements, one file of JSON lines a run, in `results/<device>/`; no torch."""
