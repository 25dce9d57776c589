"""Pipelines on the platforms that people run: what has to be there, as that platform wants it written."""
