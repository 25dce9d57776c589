"""What a feed is, and what all feeds over the network share: resuming, doubles, outages."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
import orjson
from yarl import URL

from forebay.errors import ForebayError
from forebay.records import JSON
from forebay.settings import SecretRef, read_secret

log = logging.getLogger(__name__)

CONNECT_S = 20.0
"""Timeout of a connection attempt."""
RECENT = 32
"""Digests of the last records that a cursor remembers, against doubles after a reconnect."""


class Cursor(Protocol):
    """Where to go on. Its text is what a checkpoint holds and `Feed.read` takes."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Received:
    """One record of a feed. `cursor`: where to go on after it. `position`: its name within the feed.

    `fields` are added to those that are read of `raw`, see `with_added`. `headers`
    go with an event and a dead letter. `cut_bytes` are missing at the end of `raw`.
    """

    cursor: Cursor
    raw: bytes
    position: str
    fields: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    headers: Mapping[str, bytes] = field(default_factory=dict)
    cut_bytes: int = 0


class Feed(Protocol):
    """Something that can be read from a cursor on. Instances are pickled into the job graph."""

    @property
    def name(self) -> str:
        """A word for positions and logs, without secrets."""
        ...

    def read(self, cursor: str | None) -> AsyncIterator[Received]:
        """The records after `cursor` (None: from where the feed starts), in order.

        Network trouble is handled inside: the iterator goes on, for ever where the feed has no end. It
        stops reading while the caller does not ask for more. Raises `FeedRefused` where asking again is no
        use.
        """
        ...


class FeedBroken(ForebayError):
    """The connection to a feed could not be made or was lost; it will be tried again."""


class FeedRefused(ForebayError):
    """The server does not serve this feed to these headers: its address or a header must be mended."""


PASSING = frozenset((408, 425, 429))
"""Answers of 400 to 499 that another attempt may change."""

Headers = Mapping[str, str | SecretRef]
"""HTTP headers of a feed; a secret one names where its value is, and is read at each connection."""


HARMLESS = frozenset(("accept-language", "from", "user-agent"))
"""Headers that any server may read, in lower case."""


def header_values(headers: Headers) -> dict[str, str]:
    """`headers` with the secrets in them. Raises `SettingError` where one is missing."""
    return {
        name: read_secret(value) if isinstance(value, SecretRef) else value for name, value in headers.items()
    }


def redirects(headers: Headers) -> list[aiohttp.TraceConfig]:
    """What a session needs so that `headers` reach the configured origin only.

    Raises `FeedRefused` within the request at a redirect to another scheme, host or port. A feed whose
    headers tell nobody anything, or that has none, may be redirected anywhere.
    """
    if HARMLESS.issuperset(name.lower() for name in headers):
        return []
    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_stay)
    return [tracing]


async def _stay(session: object, context: object, params: aiohttp.TraceRequestRedirectParams) -> None:
    answer = params.response.headers
    try:
        target = params.url.join(URL(answer.get("Location") or answer.get("URI") or ""))
    except ValueError:
        raise FeedRefused("the server redirects to what is not a URL") from None
    if _origin(target) != _origin(params.url):
        raise FeedRefused(
            f"the server redirects to {target.scheme}://{target.host}, and the feed's headers go to no other "
            "origin than that of its url; give the final address"
        )


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    return url.scheme.replace("ws", "http"), url.host, url.port


def broken(error: BaseException) -> FeedBroken | FeedRefused:
    """What happened to a connection, without its address: that may hold secrets."""
    if isinstance(error, aiohttp.ClientResponseError):
        return answered(error.status)
    if isinstance(error, aiohttp.InvalidURL):
        return FeedRefused("the address is not a URL")
    return FeedBroken(f"{type(error).__name__}: {error}")


def answered(status: int) -> FeedBroken | FeedRefused:
    """What a server's `status` in place of the feed means."""
    if 400 <= status < 500 and status not in PASSING:
        return FeedRefused(f"the server answered {status}; check the feed's url and headers")
    return FeedBroken(f"the server answered {status}")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between attempts: doubled from `first_s` up to `most_s`, times a random factor of 0.5 to 1."""

    first_s: float = 0.5
    most_s: float = 30.0

    def delay_s(self, failures: int, dice: random.Random) -> float:
        """The delay after `failures` failed attempts in a row (from 1)."""
        top: float = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 30))
        return top * (0.5 + dice.random() / 2)


class Mark:
    """How far a feed was read: the server's own cursor and digests of the last records, as text and back."""

    __slots__ = ("at", "recent")

    def __init__(self, at: str | None = None, recent: tuple[str, ...] = ()) -> None:
        self.at = at
        self.recent: deque[str] = deque(recent, maxlen=RECENT)

    @classmethod
    def of(cls, cursor: str | None) -> Mark:
        """The mark that `str` gave; an empty one for None. Raises `ForebayError` for what it did not give."""
        if cursor is None:
            return cls()
        try:
            at, recent = orjson.loads(cursor)
            if not (at is None or isinstance(at, str)) or not isinstance(recent, list):
                raise ValueError("neither a place nor digests")
        except (ValueError, TypeError) as error:
            raise ForebayError(
                f"the checkpoint holds a feed's place that cannot be read ({str(error)[:200]}): go on from "
                "an older checkpoint, or start over"
            ) from None
        return cls(at, tuple(recent))

    def __str__(self) -> str:
        return orjson.dumps([self.at, list(self.recent)]).decode()

    def has(self, digest: str) -> bool:
        """Whether the record with this digest is among the last ones."""
        return digest in self.recent

    def advance(self, at: str | None, digest: str) -> None:
        """Take note of a record that goes out."""
        self.at = at
        self.recent.append(digest)


def digest_of(*parts: bytes) -> str:
    """Sixteen hexadecimal digits that stand for `parts`."""
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
    """What `once` gives, connection after connection.

    `once` makes one connection and raises `FeedBroken` when it is lost; an end without an error counts as
    lost too, and so does `FeedRefused` once a record has come: what was right will be right again. Before
    that it is raised, with `name`. Delays grow until a record arrives. One warning per outage, one note when
    it is over.
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
            log.warning("%s: %s; trying again until it is back", name, problem)
        await sleep(backoff().delay_s(failures, dice))


async def _close(iterator: AsyncIterator[Received]) -> None:
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()
