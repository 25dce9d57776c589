"""Lengths of prompts and answers in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from forebay.errors import SettingError

MAX_TOKENS = 10_000_000


class Lengths(Protocol):
    """A distribution of numbers of tokens, each at least 1."""

    def draw(self, random: Random) -> int: ...

    def asked(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Exactly:
    tokens: int

    def __post_init__(self) -> None:
        check_tokens("length", self.tokens)

    def draw(self, random: Random) -> int:
        return self.tokens

    def asked(self) -> dict[str, Any]:
        return {"kind": "exactly", "tokens": self.tokens}


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `low` to `high` is equally likely, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        check_tokens("shortest length", self.low)
        check_tokens("longest length", self.high)
        if self.low > self.high:
            raise SettingError(f"lengths: the shortest, {self.low}, is above the longest, {self.high}")

    def draw(self, random: Random) -> int:
        return random.randint(self.low, self.high)

    def asked(self) -> dict[str, Any]:
        return {"kind": "uniform", "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class CappedExponential:
    """Exponential with this mean before the cut; draws above `limit` are repeated.

    The lengths of the continuous-batching study: mean 128, limits 32, 128, 512 and 1536. Draws are rounded
    up, so none is 0; before the cut the mean is then 1 / (1 - e^(-1/mean)): half a token more.
    """

    mean: float
    limit: int

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= MAX_TOKENS:
            raise SettingError(f"mean length: expected 1 to {MAX_TOKENS} tokens, found {self.mean:g}")
        check_tokens("length limit", self.limit)
        if self.limit < self.mean / 100:
            raise SettingError(
                f"length limit: {self.limit} tokens would reject nearly every draw of mean {self.mean:g}; "
                f"expected at least {self.mean / 100:g}"
            )

    def draw(self, random: Random) -> int:
        while True:
            drawn = max(1, -int(-random.expovariate(1 / self.mean) // 1))
            if drawn <= self.limit:
                return drawn

    def asked(self) -> dict[str, Any]:
        return {"kind": "capped_exponential", "mean": self.mean, "limit": self.limit}


def check_tokens(name: str, tokens: int) -> None:
    """Raise `SettingError` unless `tokens` is 1 to 10 million."""
    if not 1 <= tokens <= MAX_TOKENS:
        raise SettingError(f"{name}: expected 1 to {MAX_TOKENS} tokens, found {tokens}")


def read_lengths(text: str) -> Lengths:
    """Parse `512`, `100-200`, or `exp:128:1536` for the capped exponential. Raises `SettingError`."""
    try:
        kind, *numbers = text.split(":")
        if kind == "exp" and len(numbers) == 2:
            return CappedExponential(float(numbers[0]), int(numbers[1]))
        low, dash, high = text.partition("-")
        return Uniform(int(low), int(high)) if dash else Exactly(int(low))
    except ValueError:
        raise SettingError(
            f"lengths: expected a number of tokens, LOW-HIGH or exp:MEAN:LIMIT, found {text[:80]!r}"
        ) from None
