"""One request of a client, from its head to how it ended."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.gateway.asgi import RawHeaders
from forebay.gateway.call import RelayedCall


@dataclass(slots=True)
class Exchange:
    """One request and how it ended."""

    method: str
    path: str
    route: str
    """The path by which it is counted: that of its description."""
    headers: dict[bytes, bytes]
    raw: RawHeaders
    id: str
    host: str
    began_s: float
    key: str = "unknown"
    model: str | None = None
    """The model as the client calls it."""
    outcome: str = "500"
    """A status, or `hung_up` or `cut`."""
    error: str | None = None
    """The code of the gateway's own error."""
    call: RelayedCall | None = None
    body_read: bool = False

    @property
    def begun(self) -> bool:
        """Whether the client has got a byte of a replica's answer."""
        return self.call is not None and self.call.begun

    @property
    def waits(self) -> bool:
        """Whether it waits for a replica."""
        return self.call.waits if self.call is not None else self.body_read

    @property
    def status(self) -> int | None:
        """The status that the client got; None if it got none."""
        return self.call.status or None if self.call is not None else None

    @property
    def unread(self) -> int:
        """Bytes of the body that may still come; a large number where its length is not given."""
        if self.body_read:
            return 0
        if b"transfer-encoding" in self.headers:
            return 1 << 60
        length = self.headers.get(b"content-length", b"0")
        return int(length[:20]) if length.isdigit() else 1 << 60
