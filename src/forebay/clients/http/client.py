"""A client of any number of servers."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.clients.http.connection import Quote
from forebay.clients.http.server import HttpServer

MANY = 256
"""With more servers, those without connections are forgotten: new replicas have new addresses."""


class HttpClient:
    """The servers that get the same headers. Belongs to the event loop of its first request."""

    def __init__(self, *, headers: Mapping[str, str], quote: Quote) -> None:
        self._headers = headers
        self._quote = quote
        self._servers: dict[str, HttpServer] = {}

    def server(self, url: str) -> HttpServer:
        found = self._servers.get(url)
        if found is None:
            if len(self._servers) >= MANY:
                self._servers = {key: one for key, one in self._servers.items() if one.connections}
            found = self._servers[url] = HttpServer(url, headers=self._headers, quote=self._quote)
        return found

    async def close(self) -> None:
        """Close all connections; calls in flight raise `Unreachable`."""
        for server in self._servers.values():
            await server.close()
