"""API keys, compared in constant time, and their limits of requests and tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b, sha256
from hmac import compare_digest
from typing import NamedTuple

from forebay.gateway.refusal import Refusal, wrong_key


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Infinite means no limit. `burst`: requests that may arrive at once after a pause."""

    requests_per_s: float = math.inf
    burst: float = 1.0
    in_flight: float = math.inf
    tokens_per_min: float = math.inf
    tokens_per_day: float = math.inf


class Bucket:
    """A token bucket that starts full and fills at `rate_per_s` up to `size`. Times are passed in."""

    __slots__ = ("_left", "_rate_per_s", "_seen_s", "_size")

    def __init__(self, rate_per_s: float, size: float, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._size = size
        self._left = size
        self._seen_s = now_s

    def take(self, amount: float, now_s: float) -> float:
        """Take `amount` and return 0, or return the seconds until that is possible. An `amount` over `size`
        needs a full bucket and leaves it negative.
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
        """Return unused tokens; a negative amount takes more. The level stays within ±`size`."""
        if self._rate_per_s != math.inf:
            self._left = max(-self._size, min(self._size, self._left + amount))


DAY_MS = 86_400_000


MAX_DAYS = 8


class DayBudget:
    """Tokens of each day (UTC). The last days are kept, in case the clock is set back or ahead."""

    __slots__ = ("_day", "_limit", "_used")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._day = 0
        self._used: dict[int, float] = {}

    def wait_s(self, wall_ms: int) -> float:
        """0 while tokens are left, else seconds until the next day. The last request may exceed the limit."""
        self._day = wall_ms // DAY_MS
        return 0.0 if self._used.get(self._day, 0.0) < self._limit else (DAY_MS - wall_ms % DAY_MS) / 1000

    def add(self, tokens: float) -> None:
        self._used[self._day] = max(0.0, self._used.pop(self._day, 0.0) + tokens)
        if len(self._used) > MAX_DAYS:
            del self._used[next(iter(self._used))]

    def change(self, limit: float) -> None:
        self._limit = limit


class Usage:
    """What one key uses of its limits. Methods raise `Refusal` (429) above a limit."""

    def __init__(self, limits: KeyLimits, now_s: float) -> None:
        self.in_flight = 0
        self._day = DayBudget(limits.tokens_per_day)
        self.change(limits, now_s)

    def change(self, limits: KeyLimits, now_s: float) -> None:
        """Apply new limits with full buckets; the day's tokens stay counted."""
        self.limits = limits
        self._requests = Bucket(limits.requests_per_s, max(1.0, limits.burst), now_s)
        self._tokens = Bucket(limits.tokens_per_min / 60, limits.tokens_per_min, now_s)
        self._day.change(limits.tokens_per_day)

    @contextmanager
    def request(self, now_s: float) -> Iterator[None]:
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
        """Take the prompt's tokens and the requested ones; returns how many: at most two minutes' worth, so
        that the key owes one minute at most.
        """
        amount = min(amount, 2 * self.limits.tokens_per_min)
        if amount and (wait_s := self._day.wait_s(wall_ms)):
            raise _over("tokens", f"more than {self.limits.tokens_per_day:g} tokens a day", wait_s)
        if wait_s := self._tokens.take(amount, now_s):
            raise _over("tokens", f"more than {self.limits.tokens_per_min:g} tokens a minute", wait_s)
        self._day.add(amount)
        return amount

    def settle(self, taken: float, used: float) -> None:
        self._tokens.give_back(taken - used)
        self._day.add(used - taken)


def _over(kind: str, what: str, retry_after_s: float) -> Refusal:
    message = f"{what} are not allowed with this API key; try again later"
    return Refusal(429, "rate_limit_exceeded", message, kind=kind, retry_after_s=retry_after_s)


ANYONE, UNKNOWN = "anyone", "unknown"
UNNAMED = frozenset((ANYONE, UNKNOWN))
MAX_HEADER_BYTES = 16_384 + 16


class KeyEntry(NamedTuple):
    """An API key. Keys of one `cache_group` share the engines' prefix cache."""

    name: str
    key: str
    limits: KeyLimits
    cache_group: str | None = None


class Caller:
    """One API key by name, with its usage. Holds a digest, never the key.

    `salt`: of the engines' prefix cache, the same in every gateway and not to be guessed; None: no own cache.
    """

    __slots__ = ("digest", "name", "salt", "usage")

    def __init__(self, name: str, digest: bytes, usage: Usage, cache_group: str | None = None) -> None:
        self.name = name
        self.digest = digest
        self.usage = usage
        self.salt = None if not digest else _salt(digest, cache_group)

    def __repr__(self) -> str:
        return f"Caller({self.name!r})"


class KeyRing:
    """The known keys. Without any, everybody is one caller named `anyone`."""

    def __init__(self, keys: Iterable[KeyEntry], now_s: float) -> None:
        self._callers: list[Caller] = []
        self._anyone = Caller(ANYONE, b"", Usage(KeyLimits(), now_s))
        self.replace(keys, now_s)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(caller.name for caller in self._callers)

    def replace(self, keys: Iterable[KeyEntry], now_s: float) -> None:
        """Replace all keys. Those with the same name keep their usage; requests of removed keys continue."""
        before = {caller.name: caller.usage for caller in self._callers}
        callers = []
        for name, key, limits, cache_group in keys:
            usage = before.get(name) or Usage(limits, now_s)
            if usage.limits != limits:
                usage.change(limits, now_s)
            callers.append(Caller(name, _digest(key.encode()), usage, cache_group))
        self._callers = callers

    @property
    def open(self) -> bool:
        return not self._callers

    @property
    def shared(self) -> bool:
        return len(self._callers) > 1

    def find(self, headers: Mapping[bytes, bytes]) -> Caller:
        """The owner of the key in `Authorization: Bearer` or `x-api-key` (Anthropic's clients).

        Raises `Refusal` (401). Compares digests with all keys, so that the time reveals nothing.
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


def _salt(digest: bytes, cache_group: str | None) -> str:
    # A client's own salt is mixed into that of its key, so no client can name the salt of a group.
    source = digest if cache_group is None else b"group " + cache_group.encode()
    return blake2b(source, digest_size=16, person=b"forebay cache").hexdigest()
