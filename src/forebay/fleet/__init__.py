"""Many replicas: which one takes a request, and when.

A request's way: `FleetClient.place` lets it wait, `Admission` picks its replica in the `ReplicaTable`, and a
`ReplicaLease` reports to the `Replica` how it went. `FleetEngine` repeats what failed elsewhere.
"""
