"""Bounds connections: by client, those in a TLS handshake, and by the files that this process may open."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network

from forebay.gateway.spec import GatewaySpec
from forebay.processes import raise_file_limit

Close = Callable[[], None]


class _Waiting:
    def __init__(self) -> None:
        self._all: dict[object, Close] = {}
        self._of: dict[str, dict[object, Close]] = {}

    def add(self, connection: object, client: str, close: Close) -> None:
        self._all[connection] = self._of.setdefault(client, {})[connection] = close

    def remove(self, connection: object, client: str) -> None:
        if self._all.pop(connection, None) is not None:
            del self._of[client][connection]
            if not self._of[client]:
                del self._of[client]

    def oldest(self, client: str | None) -> tuple[object, Close] | None:
        return next(iter((self._all if client is None else self._of.get(client, {})).items()), None)


class Connections:
    """Bounds the connections of all clients, and of each one.

    A connection is unproven until a request on it has shown that its client may call. To make room for a new
    one, the oldest unproven one is closed, so that clients without a key cannot keep others out; if there is
    none, the oldest without a request.
    """

    def __init__(self, most: int, most_per_client: int) -> None:
        self._most = most
        self._most_per_client = most_per_client
        self._clients: dict[object, str] = {}
        self._counts: Counter[str] = Counter()
        self._unproven, self._resting = _Waiting(), _Waiting()

    def __len__(self) -> int:
        return len(self._clients)

    def add(self, connection: object, client: str, close: Close) -> bool:
        """Count a connection; `close` ends it if it makes room. Returns False if there is no room."""
        if not (self._has_room(client) or self._make_room(client)):
            return False
        self._clients[connection] = client
        self._counts[client] += 1
        self._unproven.add(connection, client, close)
        return True

    def _has_room(self, client: str) -> bool:
        return self._counts[client] < self._most_per_client and len(self._clients) < self._most

    def _make_room(self, client: str) -> bool:
        of = client if self._counts[client] >= self._most_per_client else None
        found = self._unproven.oldest(of) or self._resting.oldest(of)
        if found is None:
            return False
        connection, close = found
        self.remove(connection)
        close()
        return True

    def prove(self, connection: object) -> None:
        client = self._clients.get(connection)
        if client is not None:
            self._unproven.remove(connection, client)
            self._resting.remove(connection, client)

    def rest(self, connection: object, close: Close) -> None:
        client = self._clients.get(connection)
        if client is not None:
            self._resting.add(connection, client, close)

    def remove(self, connection: object) -> None:
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


LOG = logging.getLogger("forebay.gateway")
MAX_HANDSHAKES = 1024
OTHER_FILES = 256


class Handshakes:
    """Connections whose TLS handshake has not ended; for one more than `most`, the oldest is cut."""

    def __init__(self, most: int = MAX_HANDSHAKES) -> None:
        self._most = most
        self._begun: dict[int, socket.socket] = {}

    def begin(self, connection: socket.socket) -> None:
        number = connection.fileno()
        # The event loop may have closed one with this number.
        self._begun.pop(number, None)
        self._begun[number] = connection
        if len(self._begun) > self._most:
            oldest = self._begun.pop(next(iter(self._begun)))
            with suppress(OSError):
                # Its transport closes it, or has done so.
                oldest.shutdown(socket.SHUT_RDWR)

    def end(self, number: int) -> None:
        self._begun.pop(number, None)


class Listener(socket.socket):
    handshakes: Handshakes | None = None

    def accept(self) -> tuple[socket.socket, object]:
        connection, address = super().accept()
        if self.handshakes is not None:
            self.handshakes.begin(connection)
        return connection, address


def within_files(spec: GatewaySpec) -> GatewaySpec:
    """`spec` with as many connections as this process may open files for; raises its own limit first."""
    limits = spec.limits
    others = OTHER_FILES + (0 if spec.tls is None else MAX_HANDSHAKES)
    needed = limits.connections + min(limits.connections, limits.in_flight) + others
    most = raise_file_limit(needed)
    if most == needed:
        return spec
    connections = max(1, (most - others) // 2)
    LOG.warning(
        "limits.connections: %d need %d open files, and this process may open %d, so there are at most %d; "
        "raise the limit (ulimit -n %d)",
        *(limits.connections, needed, most, connections, needed),
    )
    return spec.model_copy(update={"limits": limits.model_copy(update={"connections": connections})})
