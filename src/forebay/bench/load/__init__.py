"""Requests, their lengths, and when they are due."""
