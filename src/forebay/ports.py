"""TCP ports for servers that must be told theirs before they start."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

from forebay.errors import LaunchError

PORTS = range(20_000, 30_000)
"""None that systems give to outgoing connections (Linux: from 32,768): any of those could take a port between
the look at it and the start of its server."""
TRIED = 1000


def free_port() -> int:
    """A TCP port on this machine that was free a moment ago. Raises `LaunchError` where none is found."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many different ones; in no order, so that two that look at once find others."""
    found = [port for port, _ in zip(_free(), range(count), strict=False)]
    if len(found) < count:
        raise LaunchError(
            f"only {len(found)} of {count} ports are free, of {TRIED} tried from {PORTS.start} to "
            f"{PORTS.stop - 1}"
        )
    return found


def _free() -> Iterator[int]:
    for port in random.sample(PORTS, TRIED):
        with socket.socket() as probe:
            # As servers do: a port whose last connections are in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
