"""Who may use the gateway: API keys, compared without telling anything by time."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest

from forebay.gateway.limits import KeyLimits, Usage
from forebay.gateway.refusal import wrong_key

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
        self._callers = [
            Caller(name, _digest(key.encode()), Usage(limits, now_s)) for name, key, limits in keys
        ]
        self._anyone = Caller(ANYONE, b"", Usage(KeyLimits(), now_s))

    @property
    def open(self) -> bool:
        """Whether everybody is let in."""
        return not self._callers

    @property
    def shared(self) -> bool:
        """Whether there are several callers."""
        return len(self._callers) > 1

    def find(self, authorization: bytes | None) -> Caller:
        """Whose key the `Authorization` header holds. Raises `Refusal` (401) for none and for a wrong one.

        Every key is compared, by digest, whichever fits: how long it takes says nothing.
        """
        if not self._callers:
            return self._anyone
        scheme, _, key = (authorization or b"")[:MAX_HEADER_BYTES].partition(b" ")
        digest = _digest(key.strip())
        found: Caller | None = None
        for caller in self._callers:
            if compare_digest(caller.digest, digest):
                found = caller
        if found is None or scheme.lower() != b"bearer":
            raise wrong_key()
        return found


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
