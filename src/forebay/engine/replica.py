"""One replica as a fleet uses it: it answers requests, and says how it is and what it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import aiohttp

from forebay.clock import Clock, SystemClock
from forebay.engine.client import HttpEngine, open_session, request_headers
from forebay.engine.deadline import Deadline
from forebay.engine.load import ReplicaCounters
from forebay.engine.probe import ServedModel, check_health, fetch_cache_tokens, fetch_metrics, list_models
from forebay.records import Completion, ReplicaLoad, Request


class ReplicaEngine(Protocol):
    """An `Engine` that tells how far an answer is."""

    async def complete(
        self,
        request: Request,
        *,
        timeout_s: float,
        deadline: Deadline | None = None,
        on_content: Callable[[], None] | None = None,
    ) -> Completion:
        """As `Engine` has it. `on_content` is called each time that content came: once at its end for an
        answer in one piece."""
        ...

    async def close(self) -> None: ...


class Replica(Protocol):
    """What a fleet needs of a replica. All but `engine` raise the `EngineError` of the cause."""

    @property
    def engine(self) -> ReplicaEngine: ...

    async def check_health(self, timeout_s: float) -> bool:
        """Return where it is well: False where it is in reach and knows no such question."""
        ...

    async def list_models(self, timeout_s: float) -> tuple[ServedModel, ...]: ...

    async def fetch_metrics(self, timeout_s: float) -> tuple[ReplicaLoad, ReplicaCounters]: ...

    async def fetch_cache_tokens(self, timeout_s: float) -> float | None: ...

    async def close(self) -> None: ...


class HttpReplica:
    """A `Replica` over HTTP. Questions go over one connection that is kept, apart from the requests'."""

    def __init__(self, url: str, *, api_key: str | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._engine = HttpEngine(url, api_key=api_key, clock=self._clock)
        self._url = self._engine.url
        self._api_key = api_key
        self._session: aiohttp.ClientSession | None = None

    @property
    def engine(self) -> HttpEngine:
        return self._engine

    async def check_health(self, timeout_s: float) -> bool:
        return await check_health(self._url, timeout_s=timeout_s, session=self._open())

    async def list_models(self, timeout_s: float) -> tuple[ServedModel, ...]:
        return await list_models(self._url, api_key=self._api_key, timeout_s=timeout_s, session=self._open())

    async def fetch_metrics(self, timeout_s: float) -> tuple[ReplicaLoad, ReplicaCounters]:
        return await fetch_metrics(
            self._url,
            api_key=self._api_key,
            timeout_s=timeout_s,
            clock=self._clock,
            session=self._open(),
        )

    async def fetch_cache_tokens(self, timeout_s: float) -> float | None:
        return await fetch_cache_tokens(
            self._url, api_key=self._api_key, timeout_s=timeout_s, session=self._open()
        )

    async def close(self) -> None:
        await self._engine.close()
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(request_headers(self._api_key))
        return self._session
