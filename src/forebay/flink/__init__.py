"""The inference operators in Flink: event time, environment, checkpoints, and the JVM.

May import `fleet` and below; only this room, connectors, apps and api import PyFlink.
"""
