"""Pipelines as files: their specification, checked as a whole before anything starts."""
