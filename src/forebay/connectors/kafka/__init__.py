"""Kafka topics as a source and as a sink, through Flink's own connector.

The connector is used as a table of raw bytes: that is where Python sees a record's key, headers, timestamp,
partition and offset, and where a value that cannot be parsed still arrives. What is parsed, is parsed here.
"""
