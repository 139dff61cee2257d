"""The harness's side of the wall: it draws inputs, asks a solution's process, compares results."""
