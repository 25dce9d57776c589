"""How many replicas a workload needs, computed before any is started."""
