"""Summaries of what a stream says under each key: windows, chunks, a tree of partial summaries."""
