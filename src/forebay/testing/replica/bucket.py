"""A token bucket, as servers have it that limit the rate of calls."""

from __future__ import annotations


class Bucket:
    """Holds `most` tokens and gets `per_s` of them; None: there are always some. Moments are passed in."""

    def __init__(self, per_s: float | None, most: int) -> None:
        self._per_s = per_s
        self._most = most
        self._tokens = float(most)
        self._at_s = 0.0

    def take(self, now_s: float) -> float:
        """Take a token: 0, or where there is none the seconds until there is one."""
        if self._per_s is None:
            return 0.0
        self._tokens = min(self._most, self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._tokens < 1:
            return (1 - self._tokens) / self._per_s
        self._tokens -= 1
        return 0.0
