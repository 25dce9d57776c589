"""The open connections by client, and which of them make room for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network


class Connections:
    """Bounds the connections of all clients, and of each one.

    A connection is unproven until a request on it has shown that its client may call. Unproven ones make room
    for new ones, oldest first, so that clients without a key cannot keep others out.
    """

    def __init__(self, most: int, most_per_client: int) -> None:
        self._most = most
        self._most_per_client = most_per_client
        self._clients: dict[object, str] = {}
        self._counts: Counter[str] = Counter()
        self._unproven: dict[object, Callable[[], None]] = {}
        self._unproven_of: dict[str, dict[object, None]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def add(self, connection: object, client: str, close: Callable[[], None]) -> bool:
        """Count a connection; `close` ends it if it makes room. Returns False if there is no room."""
        if not (self._has_room(client) or self._make_room(client)):
            return False
        self._clients[connection] = client
        self._counts[client] += 1
        self._unproven[connection] = close
        self._unproven_of.setdefault(client, {})[connection] = None
        return True

    def _has_room(self, client: str) -> bool:
        return self._counts[client] < self._most_per_client and len(self._clients) < self._most

    def _make_room(self, client: str) -> bool:
        full = self._counts[client] >= self._most_per_client
        oldest = next(iter(self._unproven_of.get(client, ()) if full else self._unproven), None)
        if oldest is None:
            return False
        close = self._unproven[oldest]
        self.remove(oldest)
        close()
        return True

    def prove(self, connection: object) -> None:
        """The client of this connection may call."""
        if self._unproven.pop(connection, None) is None:
            return
        client = self._clients[connection]
        del self._unproven_of[client][connection]
        if not self._unproven_of[client]:
            del self._unproven_of[client]

    def remove(self, connection: object) -> None:
        """Forget a connection that has ended, if it was counted."""
        self.prove(connection)
        client = self._clients.pop(connection, None)
        if client is not None:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]


def client_of(address: str) -> str:
    """What counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    host = address.partition("%")[0]
    if ":" not in host:
        return host
    network = IPv6Address(host)
    return str(network.ipv4_mapped or IPv6Network((int(network) >> 64 << 64, 64)))
