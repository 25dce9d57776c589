"""Counts in texts for people, whose nouns agree with them."""

from __future__ import annotations


def counted(count: int, thing: str, things: str | None = None) -> str:
    """`1 topic`, `2 topics`. `things`: the plural, if it is not `thing` and an `s`."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"
