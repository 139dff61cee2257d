"""What was measured: one file of JSON lines a run, under `results/<device>/`; no torch here."""
