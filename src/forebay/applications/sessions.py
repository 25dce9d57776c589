"""Conversations that remember: one per key, with a budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass

SYSTEM = "You are a helpful assistant. Answer in a few sentences."


@dataclass(frozen=True, slots=True)
class Sessions:
    """Settings of the application `sessions`."""

    text: str = "text"
    system: str = SYSTEM
    budget_tokens: int = 2048
    idle_s: float | None = 1800.0
