"""One request on its way to a replica, and the rules by which it goes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from forebay.gateway.asked import Asked
from forebay.gateway.attempt import RequestTrace
from forebay.records import KvHandover, Usage


@dataclass(frozen=True, slots=True)
class RelayRules:
    """`attempts`: replicas that one request is sent to at most. `first_byte_s`: how long a replica may take
    to begin a streamed answer; one that is not streamed has all the time of the request. `place_s`: how long
    a request waits for room; `absent_s`: how long if no replica is up at all; infinite: one may be started
    for it.
    """

    attempts: int = 3
    connect_s: float = 5.0
    first_byte_s: float = 120.0
    place_s: float = math.inf
    absent_s: float = 2.0


@dataclass(slots=True)
class RelayedCall:
    """One request on its way: who asks for what under which id, and how far the answer has come.

    `headers` are those that the replica gets; each attempt adds those of `trace`. `source`: whose it is, the
    key's or the address's.
    `status` and `begun_s` are set when the first byte is sent.
    `waits`: for a replica with room.
    `sent`: a replica has the request, or its prompt. `prefilled`: a replica that only prefills has done so.
    `handover`: whether the KV cache was handed over, and why not (`unsuitable`: of such a request none can
    be); None where there are no such replicas.
    `events`: of a streamed answer, so far. `usage`: what the answer cost, once it is whole; `counted`: by the
    engine's own count.
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
        """The tokens of the answer so far; estimates unless `counted`."""
        asked = self.asked
        if not asked.costs or not self.sent or self.status >= 400:
            return Usage()
        if self.usage is None:
            return Usage(asked.prompt_tokens, self.events if asked.answers else 0)
        usage = self.usage
        return Usage(usage.prompt_tokens or asked.prompt_tokens, usage.completion_tokens, usage.cached_tokens)

    @property
    def begun(self) -> bool:
        """Whether the client has got a byte."""
        return self.status != 0

    def used_tokens(self, taken: float) -> float:
        """How many of the tokens that were `taken` for it the call has used: what the replica counted, of a
        stream that broke off what had come, and all where nobody knows. One that was refused costs its prompt
        if that was prefilled."""
        prompt = self.asked.prompt_tokens
        if self.usage is not None:
            return (self.usage.prompt_tokens or prompt) + self.usage.completion_tokens
        if not self.sent or self.status >= 400:
            return min(taken, prompt) if self.sent and self.prefilled else 0
        return min(taken, prompt + self.events) if self.streamed else taken

    def begin(self, replica: str, status: int, now_s: float) -> None:
        self.replica, self.status, self.begun_s = replica, status, now_s
