"""One client request, from its head to its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal
from uuid import uuid4

from forebay.gateway.asgi import RawHeaders
from forebay.gateway.asked import Asked
from forebay.gateway.tracing import RequestTrace
from forebay.records import KvHandover, Usage


@dataclass(frozen=True, slots=True)
class RelayRules:
    """`attempts`: replicas tried at most. `first_byte_s`: for streamed answers only. `place_s`: wait for
    room. `absent_s`: wait if no replica is up; infinite if one may be started. `fields`, `headers`: further
    ones that clients may send. `cache_salt`: each key has a prefix cache of its own.
    """

    attempts: int = 3
    connect_s: float = 5.0
    first_byte_s: float = 120.0
    place_s: float = math.inf
    absent_s: float = 2.0
    fields: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    cache_salt: bool = True


@dataclass(slots=True)
class RelayedCall:
    """One request on its way to a replica, and its progress.

    `headers`: for the replica; attempts add those of `trace`. `source`: key or address of the client.
    `status`, `begun_s`: set with the first byte to the client.
    `waits`: for a replica with room.
    `sent`: a replica has the request or its prompt. `prefilled`: its prefill is done elsewhere.
    `handover`: of the KV cache, or why not (`unsuitable`: this request allows none); None without prefill
    replicas.
    `events`: streamed so far. `usage`: cost of the complete answer; `counted`: by the engine.
    """

    asked: Asked
    tenant: str
    id: str
    headers: list[tuple[str, str]]
    source: str | None = None
    trace: RequestTrace = field(default_factory=RequestTrace)
    replica: str = ""
    status: int = 0
    begun_s: float = math.nan
    streamed: bool = False
    waits: bool = False
    sent: bool = False
    prefilled: bool = False
    handover: KvHandover | Literal["unsuitable"] | None = None
    events: int = 0
    usage: Usage | None = None
    counted: bool = False

    @property
    def spent(self) -> Usage:
        asked = self.asked
        if not asked.costs or not self.sent or self.status >= 400:
            return Usage()
        if self.usage is None:
            return Usage(asked.prompt_tokens, self.events if asked.answers else 0)
        usage = self.usage
        return Usage(usage.prompt_tokens or asked.prompt_tokens, usage.completion_tokens, usage.cached_tokens)

    @property
    def begun(self) -> bool:
        return self.status != 0

    def used_tokens(self, taken: float) -> float:
        """How many of the `taken` tokens were used. Without the replica's count: all, or, if the call was
        rejected, the prompt if it was prefilled.
        """
        prompt = self.asked.prompt_tokens
        if self.usage is not None and self.counted:
            return (self.usage.prompt_tokens or prompt) + self.usage.completion_tokens
        if not self.sent or self.status >= 400:
            return min(taken, prompt) if self.sent and self.prefilled else 0
        return taken

    def begin(self, replica: str, status: int, now_s: float) -> None:
        self.replica, self.status, self.begun_s = replica, status, now_s


def _nothing() -> None: ...


@dataclass(slots=True)
class Exchange:
    method: str
    path: str
    route: str
    headers: dict[bytes, bytes]
    raw: RawHeaders
    id: str
    host: str
    began_s: float
    prove: Callable[[], None] = _nothing
    allowed_host: bool = True
    """Whether a client without a key may reach the gateway by this name."""
    key: str = "unknown"
    engine_id: str = field(default_factory=lambda: uuid4().hex)
    """The request's id at replicas: never the client's, which could name another's state."""
    model: str | None = None
    outcome: str = "500"
    """A status, `hung_up` or `cut`."""
    error: str | None = None
    call: RelayedCall | None = None
    body_read: bool = False

    @property
    def begun(self) -> bool:
        return self.call is not None and self.call.begun

    @property
    def waits(self) -> bool:
        return self.call.waits if self.call is not None else self.body_read

    @property
    def status(self) -> int | None:
        return self.call.status or None if self.call is not None else None

    @property
    def unread(self) -> int:
        if self.body_read:
            return 0
        if b"transfer-encoding" in self.headers:
            return 1 << 60
        length = self.headers.get(b"content-length", b"0")
        return int(length[:20]) if length.isdigit() else 1 << 60
