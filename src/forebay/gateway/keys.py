"""Who may use the gateway (API keys, compared without telling anything by time), and how much one key may ask
for: requests a second, requests at a time, tokens a minute and a day.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from forebay.gateway.refusal import Refusal, wrong_key


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Infinite is no limit. `burst`: how many requests may come at once after a pause."""

    requests_per_s: float = math.inf
    burst: float = 1.0
    in_flight: float = math.inf
    tokens_per_min: float = math.inf
    tokens_per_day: float = math.inf


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


DAY_MS = 86_400_000


class DayBudget:
    """Tokens of one day (UTC). Wall-clock times are passed in."""

    __slots__ = ("_day", "_limit", "_used")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._day = 0
        self._used = 0.0

    def wait_s(self, wall_ms: int) -> float:
        """0 while tokens are left, else the seconds until the next day. The last request may exceed them."""
        if wall_ms // DAY_MS != self._day:
            self._day, self._used = wall_ms // DAY_MS, 0.0
        return 0.0 if self._used < self._limit else (DAY_MS - wall_ms % DAY_MS) / 1000

    def add(self, tokens: float) -> None:
        """Count tokens, or take back what was counted too much; what was counted yesterday is forgotten."""
        self._used = max(0.0, self._used + tokens)

    def change(self, limit: float) -> None:
        self._limit = limit


class Usage:
    """What one key uses of its limits. Raises `Refusal` (429) for what exceeds them."""

    def __init__(self, limits: KeyLimits, now_s: float) -> None:
        self.in_flight = 0
        self._day = DayBudget(limits.tokens_per_day)
        self.change(limits, now_s)

    def change(self, limits: KeyLimits, now_s: float) -> None:
        """From now on these limits count, with full buckets; the day's tokens stay counted."""
        self.limits = limits
        self._requests = Bucket(limits.requests_per_s, max(1.0, limits.burst), now_s)
        self._tokens = Bucket(limits.tokens_per_min / 60, limits.tokens_per_min, now_s)
        self._day.change(limits.tokens_per_day)

    @contextmanager
    def request(self, now_s: float) -> Iterator[None]:
        """Count one request in, and out again when it has ended."""
        limits = self.limits
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

    def tokens(self, amount: float, now_s: float, wall_ms: int = 0) -> float:
        """Take the tokens of a request, those of its prompt and as many as it asks for, and return how many
        were taken: at most those of two minutes, so that no request makes the key owe more than one."""
        amount = min(amount, 2 * self.limits.tokens_per_min)
        if amount and (wait_s := self._day.wait_s(wall_ms)):
            raise _over("tokens", f"more than {self.limits.tokens_per_day:g} tokens a day", wait_s)
        if wait_s := self._tokens.take(amount, now_s):
            raise _over("tokens", f"more than {self.limits.tokens_per_min:g} tokens a minute", wait_s)
        self._day.add(amount)
        return amount

    def settle(self, taken: float, used: float) -> None:
        """Of the tokens that `tokens` has taken for a request, `used` were needed."""
        self._tokens.give_back(taken - used)
        self._day.add(used - taken)


def _over(kind: str, what: str, retry_after_s: float) -> Refusal:
    message = f"{what} are not allowed with this API key; try again later"
    return Refusal(429, "rate_limit_exceeded", message, kind=kind, retry_after_s=retry_after_s)


ANYONE, UNKNOWN = "anyone", "unknown"
UNNAMED = frozenset((ANYONE, UNKNOWN))
"""What metrics call callers without a key that is known."""
MAX_HEADER_BYTES = 16_384 + 16


class Caller:
    """One API key by its name, with what it uses. Holds a digest, never the key."""

    __slots__ = ("digest", "name", "usage")

    def __init__(self, name: str, digest: bytes, usage: Usage) -> None:
        self.name = name
        self.digest = digest
        self.usage = usage

    def __repr__(self) -> str:
        return f"Caller({self.name!r})"


class KeyRing:
    """The keys that are known; without any, everybody is one caller named `anyone`."""

    def __init__(self, keys: Iterable[tuple[str, str, KeyLimits]], now_s: float) -> None:
        self._callers: list[Caller] = []
        self._anyone = Caller(ANYONE, b"", Usage(KeyLimits(), now_s))
        self.replace(keys, now_s)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(caller.name for caller in self._callers)

    def replace(self, keys: Iterable[tuple[str, str, KeyLimits]], now_s: float) -> None:
        """From now on these are the keys. One whose name stays keeps what it has used, and requests of keys
        that are gone end as they would have."""
        before = {caller.name: caller.usage for caller in self._callers}
        callers = []
        for name, key, limits in keys:
            usage = before.get(name) or Usage(limits, now_s)
            if usage.limits != limits:
                usage.change(limits, now_s)
            callers.append(Caller(name, _digest(key.encode()), usage))
        self._callers = callers

    @property
    def open(self) -> bool:
        """Whether everybody is let in."""
        return not self._callers

    @property
    def shared(self) -> bool:
        """Whether there are several callers."""
        return len(self._callers) > 1

    def find(self, headers: Mapping[bytes, bytes]) -> Caller:
        """The owner of the key in `Authorization: Bearer`, or in `x-api-key`, which Anthropic's clients send.
        Raises `Refusal` (401) if both are missing or wrong.

        Every key is compared, by digest, whichever fits: the time that it takes reveals nothing.
        """
        if not self._callers:
            return self._anyone
        digests = [_digest(key) for key in _keys_in(headers)]
        found: Caller | None = None
        for caller in self._callers:
            for digest in digests:
                if compare_digest(caller.digest, digest):
                    found = caller
        if found is None:
            raise wrong_key()
        return found


def _keys_in(headers: Mapping[bytes, bytes]) -> list[bytes]:
    scheme, _, bearer = headers.get(b"authorization", b"")[:MAX_HEADER_BYTES].partition(b" ")
    given = [bearer.strip()] if scheme.lower() == b"bearer" else []
    return [*given, headers[b"x-api-key"][:MAX_HEADER_BYTES]] if b"x-api-key" in headers else given


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
