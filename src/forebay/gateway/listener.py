"""What bounds connections below HTTP: handshakes of TLS, and the files that this process may open."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress

from forebay.gateway.spec import GatewaySpec
from forebay.processes import raise_file_limit

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
    """A listening socket that adds what it accepts to `handshakes`."""

    handshakes: Handshakes | None = None

    def accept(self) -> tuple[socket.socket, object]:
        connection, address = super().accept()
        if self.handshakes is not None:
            self.handshakes.begin(connection)
        return connection, address


def within_files(spec: GatewaySpec) -> GatewaySpec:
    """`spec` with as many connections as this process may open files for: without one, none is accepted, and
    no replica is reached. Raises the process's own limit first.
    """
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
