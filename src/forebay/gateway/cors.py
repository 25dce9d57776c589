"""Which web pages may call the gateway (CORS)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from forebay.gateway.asgi import Message, RawHeaders, Send
from forebay.gateway.refusal import from_a_page

MAX_AGE_S = 600
"""How long a browser may cache the permission."""
EXPOSED = b"x-request-id, retry-after"
MAX_HEADERS_BYTES = 2048
ANY = "*"


class Cors:
    """Allowed pages by origin; `*` allows all."""

    def __init__(self, origins: Collection[str] = ()) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def allowed(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """The request's origin if it may call, else None."""
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
        """`send`, plus the headers that let the page read the answer."""
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
