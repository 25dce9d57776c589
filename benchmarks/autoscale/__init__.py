"""Compares scaling policies in a simulator."""
