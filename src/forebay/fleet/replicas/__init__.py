"""Where a fleet's replicas come from, and whether each may get requests."""
