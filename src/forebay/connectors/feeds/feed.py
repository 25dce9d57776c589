"""The interface of a feed, and shared code: reconnecting, duplicates, redirects, errors."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import orjson

from forebay.errors import ForebayError
from forebay.records import JSON
from forebay.settings import SecretRef, read_secret

if TYPE_CHECKING:
    import aiohttp  # takes a tenth of a second
    from yarl import URL

log = logging.getLogger(__name__)
T = TypeVar("T")

CONNECT_S = 20.0
RECENT = 32


@dataclass(frozen=True, slots=True)
class Received:
    """The text of `cursor` resumes after this record; `position` names it within the feed. `cut_bytes` are
    missing at the end of `raw`."""

    cursor: object
    raw: bytes
    position: str
    fields: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    headers: Mapping[str, bytes] = field(default_factory=dict)
    cut_bytes: int = 0


class Feed(Protocol):
    """Instances are pickled into the job graph."""

    @property
    def name(self) -> str:
        """Without secrets."""
        ...

    def read(self, cursor: str | None) -> AsyncIterator[Received]:
        """The records after `cursor` (None: from the start), in order. Reconnects by itself.

        Raises `FeedRefused` if another attempt would fail as well.
        """
        ...


class FeedBroken(ForebayError): ...


class FeedRefused(ForebayError): ...


PASSING = frozenset((408, 425, 429))

Headers = Mapping[str, str | SecretRef]
"""A secret is read at each connection."""


HARMLESS = frozenset(("accept-language", "from", "user-agent"))


def header_values(headers: Headers) -> dict[str, str]:
    """Raises `SettingError`."""
    return {
        name: read_secret(value) if isinstance(value, SecretRef) else value for name, value in headers.items()
    }


def redirects(headers: Headers) -> list[aiohttp.TraceConfig]:
    """Make a session raise `FeedRefused` for a redirect to another origin, which may be internal.

    Without secret headers, the same host may change to TLS.
    """
    import aiohttp
    from yarl import URL

    upgrade = HARMLESS.issuperset(name.lower() for name in headers)

    async def stay(session: object, context: object, params: aiohttp.TraceRequestRedirectParams) -> None:
        answer = params.response.headers
        try:
            target = params.url.join(URL(answer.get("Location") or answer.get("URI") or ""))
        except ValueError:
            raise FeedRefused("the server redirects to an invalid URL") from None
        if _origin(target) == _origin(params.url) or (upgrade and _is_upgrade(params.url, target)):
            return
        raise FeedRefused(
            f"the server redirects to {target.scheme}://{target.host}, which is another origin; set url to "
            "the final address"
        )

    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(stay)
    return [tracing]


def _is_upgrade(before: URL, target: URL) -> bool:
    plain, safe = _origin(before), _origin(target)
    return (plain[0], safe[0]) == ("http", "https") and plain[1] == safe[1] and target.is_default_port()


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    return url.scheme.replace("ws", "http"), url.host, url.port


async def within(seconds: float, work: Awaitable[T]) -> T:
    """`asyncio.wait_for` loses a cancellation that arrives with the result (before Python 3.12)."""
    running = asyncio.ensure_future(work)
    try:
        await asyncio.wait([running], timeout=seconds)
        if not running.done():
            raise asyncio.TimeoutError(f"the server did not continue within {seconds:g} s")
        return running.result()
    finally:
        running.cancel()


def broken(error: BaseException) -> FeedBroken | FeedRefused:
    import aiohttp

    if isinstance(error, aiohttp.ClientResponseError):
        return answered(error.status)
    if isinstance(error, aiohttp.InvalidURL):
        return FeedRefused("the address is not a URL")
    return FeedBroken(f"{type(error).__name__}: {error}")


def answered(status: int) -> FeedBroken | FeedRefused:
    if 400 <= status < 500 and status not in PASSING:
        return FeedRefused(f"the server answered {status}; check the feed's url and headers")
    return FeedBroken(f"the server answered {status}")


@dataclass(frozen=True, slots=True)
class Backoff:
    first_s: float = 0.5
    most_s: float = 30.0

    def delay_s(self, failures: int, dice: random.Random) -> float:
        top: float = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 30))
        return top * (0.5 + dice.random() / 2)


class Mark:
    __slots__ = ("at", "recent")

    def __init__(self, at: str | None = None, recent: tuple[str, ...] = ()) -> None:
        self.at = at
        self.recent: deque[str] = deque(recent, maxlen=RECENT)

    @classmethod
    def of(cls, cursor: str | None) -> Mark:
        """Raises `ForebayError`."""
        if cursor is None:
            return cls()
        try:
            at, recent = orjson.loads(cursor)
            if not (at is None or isinstance(at, str)) or not isinstance(recent, list):
                raise ValueError("neither a place nor digests")
        except (ValueError, TypeError) as error:
            raise ForebayError(
                f"the feed's cursor in the checkpoint cannot be read ({str(error)[:200]}): resume from "
                "an older checkpoint, or start over"
            ) from None
        return cls(at, tuple(recent))

    def __str__(self) -> str:
        return orjson.dumps([self.at, list(self.recent)]).decode()

    def has(self, digest: str) -> bool:
        return digest in self.recent

    def advance(self, at: str | None, digest: str) -> None:
        self.at = at
        self.recent.append(digest)


def digest_of(*parts: bytes) -> str:
    whole = hashlib.blake2b(digest_size=8)
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()


async def connected_for_ever(
    name: str,
    once: Callable[[], AsyncIterator[Received]],
    *,
    backoff: Callable[[], Backoff],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[Received]:
    """The records of one connection after another; logs each outage and its end.

    Raises `FeedRefused` only before the first record: later the settings are known to work.
    """
    dice = random.Random()
    failures = 0
    delivered = False
    while True:
        connection = once()
        problem = "the server closed the connection"
        try:
            async for received in connection:
                delivered = True
                if failures:
                    log.info("%s: connected again after %d attempts", name, failures)
                    failures = 0
                yield received
        except (FeedBroken, FeedRefused) as error:
            if isinstance(error, FeedRefused) and not delivered:
                raise FeedRefused(f"{name}: {error}") from None
            problem = str(error)
        finally:
            await _close(connection)
        failures += 1
        if failures == 1:
            log.warning("%s: %s; retrying until it is back", name, problem)
        await sleep(backoff().delay_s(failures, dice))


async def _close(iterator: AsyncIterator[Received]) -> None:
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()
