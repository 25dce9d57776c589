"""Stateful inference without Flink or I/O: programs, and the machine that runs one over a shard's state.

May import `engine` and below.
"""
