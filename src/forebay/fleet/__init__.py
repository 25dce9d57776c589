"""Many replicas: discovery, health, admission, routing; in `autoscale`, how many there should be.

`FleetClient.place` queues a request, `Admission` picks its replica, and a `ReplicaLease` reports its outcome.
`FleetEngine` retries failures at other replicas. May import `engine` and below; no Flink.
"""
