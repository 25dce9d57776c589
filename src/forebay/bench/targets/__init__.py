"""Servers that can be measured, one file per protocol."""
