"""Stateful, continuous, exactly-once LLM inference over event streams."""

__version__ = "0.1.0"
