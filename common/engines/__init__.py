"""A sweep's work spread over devices: of this machine, or of a cluster."""
