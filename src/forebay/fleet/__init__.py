"""Many replicas: discovery, health, admission, routing; in `autoscale`, how many there should be.

`FleetClient.place` queues a request, `Admission` picks its replica in the `ReplicaTable`, and a
`ReplicaLease` reports its outcome to the `Replica`. `FleetEngine` retries failures at other replicas. May
import `engine` and below; no Flink.
"""
