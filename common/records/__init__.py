"""Records of measurements in `results/<device>/`, a file of JSON lines for each run; no torch."""
