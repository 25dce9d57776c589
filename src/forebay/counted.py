"""Counts with nouns for messages."""

from __future__ import annotations


def counted(count: int, thing: str, things: str | None = None) -> str:
    """`1 topic`, `2 topics`. `things` is an irregular plural."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"
