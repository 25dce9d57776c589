"""Summaries of a stream per key: windows, chunks, a tree of partial summaries."""
