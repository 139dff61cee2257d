"""The search for the fastest configuration of each kernel on one device."""
