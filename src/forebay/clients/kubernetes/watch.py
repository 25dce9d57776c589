"""A collection of objects: one list, then changes as they happen. On errors, it is listed again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from forebay.clients.kubernetes.connection import ApiRefusal, of_status, plain, refusal, unreachable
from forebay.clock import Clock, SystemClock

if TYPE_CHECKING:
    import httpx2

WATCH_S = 60
TIMEOUT_S = 10.0
MIN_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0
SHORT_S = 1.0
MAX_LIST_BYTES = 64 << 20
MAX_EVENT_BYTES = 8 << 20

Objects = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Collection:
    path: str
    namespace: str
    selector: str
    what: str


@dataclass(frozen=True, slots=True)
class Trouble:
    text: str


class _Refused(Exception):
    def __init__(self, found: ApiRefusal) -> None:
        super().__init__(found.detail)
        self.refusal = found


class WatchedObjects:
    """`version`: where a watch continues; None: it has to be listed."""

    def __init__(self) -> None:
        self.objects: dict[str, Mapping[str, Any]] = {}
        self.version: str | None = None

    def replace(self, listed: Any) -> None:
        """Raises `ValueError` for an invalid list."""
        try:
            items = listed.get("items") or []
            objects = {str(item["metadata"]["name"]): item for item in items}
            version = str(listed["metadata"]["resourceVersion"])
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"expected a list of objects: {type(error).__name__}: {error}") from None
        self.objects, self.version = objects, version

    def apply(self, event: Any) -> bool:
        """Whether an object has changed. Raises `ValueError` for an invalid event or a failed watch."""
        try:
            kind, body = event["type"], event["object"]
            if kind == "ERROR":
                raise _Refused(of_status(body))
            version = str(body["metadata"]["resourceVersion"])
            if kind == "BOOKMARK":
                self.version = version
                return False
            name = str(body["metadata"]["name"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected an event: {type(error).__name__}: {error}") from None
        if kind == "DELETED":
            self.objects.pop(name, None)
        elif kind in ("ADDED", "MODIFIED"):
            self.objects[name] = body
        else:
            raise ValueError(f"expected ADDED, MODIFIED, DELETED or BOOKMARK, found {str(kind)[:40]!r}")
        self.version = version
        return True


async def follow(
    http: httpx2.AsyncClient,
    collection: Collection,
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    jitter: Callable[[], float] = random.random,
) -> AsyncGenerator[Objects | Trouble, None]:
    """The collection now and after each change, or a `Trouble` while it is unknown. Never ends: on the
    server's errors, it retries after a pause.
    """
    import httpx2
    from lightkube.core.exceptions import ConfigError

    time = clock or SystemClock()
    state, failures, troubled = WatchedObjects(), 0, False
    while True:
        trouble: Trouble | None = None
        began_s = time.monotonic_s()
        try:
            if state.version is None:
                state.replace(await _list(http, collection))
                troubled = False
                yield dict(state.objects)
            async with aclosing(_events(http, collection, state.version or "")) as events:
                async for event in events:
                    changed = event is not None and state.apply(event)
                    if changed or troubled:
                        yield dict(state.objects)
                    troubled = False
                    failures = failures if event is None else 0
            short = time.monotonic_s() - began_s < SHORT_S
            failures = failures + 1 if short else 0
        except _Refused as error:
            state.version = None
            failures += 1
            if error.refusal.code != 410:
                trouble = Trouble(f"{collection.what}: {error.refusal.text(collection.namespace)}")
        except httpx2.TransportError as error:
            failures += 1
            trouble = Trouble(f"{collection.what}: {unreachable(str(http.base_url), error)}")
        except (httpx2.HTTPError, ValueError) as error:
            state.version = None
            failures += 1
            trouble = Trouble(f"{collection.what}: the API server's answer is not understood: {error}")
        except (ConfigError, OSError) as error:
            # The log-in program of the kubeconfig fails, or a file of it cannot be read.
            failures += 1
            trouble = Trouble(f"{collection.what}: the log-in failed: {plain(str(error))[:300]}")
        if trouble is not None:
            troubled = True
            yield trouble
        if failures:
            await sleep(pause_s(failures) * (0.5 + 0.5 * jitter()))


def pause_s(failures: int) -> float:
    return min(MIN_PAUSE_S * 2.0 ** min(failures - 1, 20), MAX_PAUSE_S)


async def _list(http: httpx2.AsyncClient, collection: Collection) -> Any:
    params = {"labelSelector": collection.selector}
    async with http.stream("GET", collection.path, params=params, timeout=TIMEOUT_S) as answer:
        body = bytearray()
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > MAX_LIST_BYTES:
                raise ValueError(f"more than {MAX_LIST_BYTES >> 20} MiB")
        if not answer.is_success:
            raise _Refused(refusal(answer.status_code, answer.reason_phrase, bytes(body)))
        return _json(bytes(body))


async def _events(
    http: httpx2.AsyncClient, collection: Collection, version: str
) -> AsyncGenerator[Any, None]:
    import httpx2

    params = {
        "labelSelector": collection.selector,
        "watch": "true",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(WATCH_S),
    }
    timeout = httpx2.Timeout(TIMEOUT_S, read=WATCH_S + TIMEOUT_S)
    async with http.stream("GET", collection.path, params=params, timeout=timeout) as answer:
        if not answer.is_success:
            raise _Refused(refusal(answer.status_code, answer.reason_phrase, await answer.aread()))
        yield None
        rest = b""
        async for chunk in answer.aiter_bytes():
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_EVENT_BYTES:
                raise ValueError(f"an event of more than {MAX_EVENT_BYTES >> 20} MiB")
            for line in lines:
                if line.strip():
                    yield _json(line)


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
