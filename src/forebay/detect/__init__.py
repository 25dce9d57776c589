"""Detectors of emerging topics and viral trends, with no clock, I/O or Flink.

They take texts or counts with stream time and return events. State is bounded and serialisable.
"""
