"""One client request, from its head to its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

from forebay.gateway.asgi import RawHeaders
from forebay.gateway.call import RelayedCall


def _nothing() -> None: ...


@dataclass(slots=True)
class Exchange:
    method: str
    path: str
    route: str
    """The path for metrics: that of its OpenAPI description."""
    headers: dict[bytes, bytes]
    raw: RawHeaders
    id: str
    """The client's own, or the one at replicas."""
    host: str
    began_s: float
    prove: Callable[[], None] = _nothing
    """To be called once the client has shown that it may call."""
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
        """Bytes of the body that may still arrive; a large number without a declared length."""
        if self.body_read:
            return 0
        if b"transfer-encoding" in self.headers:
            return 1 << 60
        length = self.headers.get(b"content-length", b"0")
        return int(length[:20]) if length.isdigit() else 1 << 60
