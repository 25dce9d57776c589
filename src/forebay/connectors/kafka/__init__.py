"""Kafka topics as a source and a sink, through Flink's own connector.

A table of raw bytes: otherwise Python does not get all parts of a record.
"""
