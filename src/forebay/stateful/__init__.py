"""Stateful inference without Flink: programs, and the machine that runs them over one shard's state."""
