"""Many replicas: discovery, health, admission, routing; in `autoscale`, how many there should be.

A request's way: `FleetClient.place` lets it wait, `Admission` picks its replica in the `ReplicaTable`, and a
`ReplicaLease` reports to the `Replica` how it went. `FleetEngine` repeats what failed elsewhere. May import
`engine` and below; no Flink.
"""
