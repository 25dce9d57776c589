"""One request on its way to a replica, and the limits of that way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from forebay.gateway.asked import Asked
from forebay.gateway.attempt import RequestTrace
from forebay.records import KvHandover, Usage


@dataclass(frozen=True, slots=True)
class RelayRules:
    """Limits of a request's way.

    `attempts`: replicas tried at most. `first_byte_s`: for the first byte of a streamed answer; others have
    the request's whole time. `place_s`: how long a request waits for room. `absent_s`: how long if no replica
    is up; infinite if one may be started for it.
    """

    attempts: int = 3
    connect_s: float = 5.0
    first_byte_s: float = 120.0
    place_s: float = math.inf
    absent_s: float = 2.0


@dataclass(slots=True)
class RelayedCall:
    """One request on its way to a replica, and its progress.

    `headers`: for the replica; each attempt adds those of `trace`. `source`: the key or address it is from.
    `status`, `begun_s`: set with the first byte to the client.
    `waits`: for a replica with room.
    `sent`: a replica has the request or its prompt. `prefilled`: a prefill replica is done with it.
    `handover`: whether the KV cache was handed over, or why not (`unsuitable`: this request allows none);
    None without prefill replicas.
    `events`: streamed so far. `usage`: cost of the complete answer; `counted`: by the engine itself.
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
        """Tokens of the answer so far; an estimate unless `counted`."""
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
        """How many of the `taken` tokens were used: the replica's count; the events of a broken stream; all
        if unknown. A rejected call costs its prompt if that was prefilled.
        """
        prompt = self.asked.prompt_tokens
        if self.usage is not None:
            return (self.usage.prompt_tokens or prompt) + self.usage.completion_tokens
        if not self.sent or self.status >= 400:
            return min(taken, prompt) if self.sent and self.prefilled else 0
        return min(taken, prompt + self.events) if self.streamed else taken

    def begin(self, replica: str, status: int, now_s: float) -> None:
        self.replica, self.status, self.begun_s = replica, status, now_s
