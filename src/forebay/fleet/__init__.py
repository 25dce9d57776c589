"""Many replicas: discovery, health, admission, routing; in `autoscale`, how many there should be.

May import `engine` and below; no Flink.
"""
