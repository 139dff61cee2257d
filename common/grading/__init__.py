"""The harness's side of the wall: draw inputs, ask a solution's process, compare with the oracle."""
