"""How much one key may ask for: requests a second, requests at a time, tokens a minute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from forebay.gateway.refusal import Refusal


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Infinite is no limit. `burst`: how many requests may come at once after a pause."""

    requests_per_s: float = math.inf
    burst: float = 1.0
    in_flight: float = math.inf
    tokens_per_min: float = math.inf


class Bucket:
    """A token bucket: fills at `rate_per_s` up to `size`, from which it starts. Moments are passed in."""

    __slots__ = ("_left", "_rate_per_s", "_seen_s", "_size")

    def __init__(self, rate_per_s: float, size: float, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._size = size
        self._left = size
        self._seen_s = now_s

    def take(self, amount: float, now_s: float) -> float:
        """Take `amount` where that much is left and return 0, else how many seconds until it is.

        More than the whole bucket is never there: that is taken once the bucket is full, which then owes.
        """
        if self._rate_per_s == math.inf:
            return 0.0
        self._left = min(self._size, self._left + max(0.0, now_s - self._seen_s) * self._rate_per_s)
        self._seen_s = max(self._seen_s, now_s)
        missing = min(amount, self._size) - self._left
        if missing > 1e-9:
            return missing / self._rate_per_s
        self._left -= amount
        return 0.0

    def give_back(self, amount: float) -> None:
        """Put back what was taken and not used; below 0, take what was used beyond it. The bucket never holds
        more than its size, and owes no more than that."""
        if self._rate_per_s != math.inf:
            self._left = max(-self._size, min(self._size, self._left + amount))


class Usage:
    """What one key uses of its limits. Raises `Refusal` (429) for what exceeds them."""

    def __init__(self, limits: KeyLimits, now_s: float) -> None:
        self._limits = limits
        self._requests = Bucket(limits.requests_per_s, max(1.0, limits.burst), now_s)
        self._tokens = Bucket(limits.tokens_per_min / 60, limits.tokens_per_min, now_s)
        self.in_flight = 0

    @contextmanager
    def request(self, now_s: float) -> Iterator[None]:
        """Count one request in, and out again when it has ended."""
        limits = self._limits
        if self.in_flight >= limits.in_flight:
            raise _over("in_flight", f"more than {limits.in_flight:g} requests at a time", 1.0)
        wait_s = self._requests.take(1.0, now_s)
        if wait_s:
            raise _over("requests", f"more than {limits.requests_per_s:g} requests a second", wait_s)
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def tokens(self, amount: float, now_s: float) -> float:
        """Take the tokens of a request, those of its prompt and as many as it asks for, and return how many
        were taken: at most those of two minutes, so that no request makes the key owe more than one."""
        amount = min(amount, 2 * self._limits.tokens_per_min)
        wait_s = self._tokens.take(amount, now_s)
        if wait_s:
            raise _over("tokens", f"more than {self._limits.tokens_per_min:g} tokens a minute", wait_s)
        return amount

    def settle(self, taken: float, used: float) -> None:
        """Of the tokens that `tokens` has taken for a request, `used` were needed."""
        self._tokens.give_back(taken - used)


def _over(kind: str, what: str, retry_after_s: float) -> Refusal:
    message = f"{what} are not allowed with this API key; try again later"
    return Refusal(429, "rate_limit_exceeded", message, kind=kind, retry_after_s=retry_after_s)
