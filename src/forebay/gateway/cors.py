"""Which web pages may call the gateway (CORS), and by which names requests may reach it.

A web page can have its own name resolve to 127.0.0.1 (DNS rebinding). The browser then sends no `Origin` with
a GET, and lets the page read the answer. But `Host` still holds the page's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address

from forebay.gateway.asgi import Message, RawHeaders, Send
from forebay.gateway.refusal import from_a_page

MAX_AGE_S = 600
EXPOSED = b"x-request-id, retry-after"
MAX_HEADERS_BYTES = 2048
ANY = "*"


class Cors:
    """Allowed pages by origin; `*` allows all."""

    def __init__(self, origins: Collection[str] = ()) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def allowed(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        origin = headers.get(b"origin")
        return origin if origin is not None and (self._any or origin in self._origins) else None

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `Refusal` (403) for a request of a page that may not call."""
        if b"origin" in headers and not self.allowed(headers):
            raise from_a_page()

    def is_question(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        asks = method == "OPTIONS" and b"access-control-request-method" in headers
        return asks and self.allowed(headers) is not None

    def permission(self, headers: Mapping[bytes, bytes]) -> RawHeaders:
        wanted = headers.get(b"access-control-request-headers", b"")[:MAX_HEADERS_BYTES]
        return [
            (b"access-control-allow-methods", b"GET, POST"),
            *([(b"access-control-allow-headers", wanted)] if wanted else []),
            (b"access-control-max-age", b"%d" % MAX_AGE_S),
        ]

    def sender(self, headers: Mapping[bytes, bytes], send: Send) -> Send:
        origin = self.allowed(headers)
        if not (self._origins or self._any):
            return send
        more: RawHeaders = [(b"vary", b"origin")]
        if origin is not None:
            more += [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", EXPOSED)]

        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        return send_with


class Hosts:
    """IP addresses, `localhost`, and `names`. Without `names`, any name at other addresses than loopback."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names)

    def allow(self, host: bytes | None, address: str) -> bool:
        """Whether a request with this `Host` may be sent to this address. Browsers always send one."""
        if host is None:
            return True
        name = _without_port(host.decode("latin-1").strip().lower()).rstrip(".")
        if name == "localhost" or name.endswith(".localhost") or name in self._names or _is_ip(name):
            return True
        return not self._names and not _is_loopback(address)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_ip(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    try:
        ip = ip_address(address)
    except ValueError:
        return True
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback
