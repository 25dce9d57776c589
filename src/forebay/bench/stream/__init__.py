"""Measures a pipeline end to end, from each event's own time to its committed result."""
