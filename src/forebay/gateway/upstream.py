"""What the gateway asks of a fleet."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from forebay.errors import EngineError
from forebay.gateway.body import Asked
from forebay.records import ReplicaLoad


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as `/health` and `/metrics` show it."""

    url: str
    available: bool
    in_flight: int


class Lease(Protocol):
    """The right to send one request to one replica; it ends with its context."""

    @property
    def url(self) -> str: ...

    def first_byte(self) -> None:
        """The replica has begun to answer."""
        ...

    def finished(self, output_tokens: int, load: ReplicaLoad | None) -> None:
        """The answer is whole. `load`: what the replica said of itself with it."""
        ...

    def failed(self, error: EngineError) -> None:
        """The replica did not answer, by its own fault."""
        ...


class Upstream(Protocol):
    """A fleet of replicas. One event loop owns it."""

    async def open(self) -> None:
        """Begin to look after the replicas. A replica out of reach is no error."""
        ...

    async def close(self) -> None: ...

    def place(
        self, asked: Asked, *, tenant: str, avoid: frozenset[str], within_s: float
    ) -> AbstractAsyncContextManager[Lease]:
        """Wait, at most `within_s`, until a replica may take the request.

        One of `avoid` (URLs) is only taken where there is no other. Raises `Overloaded` where none takes
        the request in time, `Unreachable` where there is none at all.
        """
        ...

    def replicas(self) -> tuple[ReplicaView, ...]:
        """All that are known."""
        ...
