"""The harness's side of the clock: fresh inputs, the device's state and limits, rows."""
