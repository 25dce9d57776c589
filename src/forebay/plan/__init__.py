"""How many replicas a workload needs, before any is started."""
