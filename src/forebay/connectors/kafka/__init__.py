"""Kafka topics as a source and a sink, through Flink's own connector.

Used as a table of raw bytes: only so does Python get all parts of a record, and values that cannot be
parsed.
"""
