"""`forebay doctor`."""

from __future__ import annotations


def doctor() -> None:
    """Say what is missing and how to get it."""
