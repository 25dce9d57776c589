"""Replicas of a run that scale with its stream."""
