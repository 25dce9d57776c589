"""Free TCP ports on this machine, for servers that must be told theirs before they start."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterator

from forebay.errors import LaunchError, SettingError

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


def port_is_free(port: int) -> bool:
    """Whether a server could listen on it now, on this machine's loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def check_port(port: int) -> None:
    """Raise `SettingError` for a port that is not one of 1024 to 65535."""
    if not 1024 <= port <= 65_535:
        raise SettingError(f"port {port} is outside 1024 to 65535")


def free_ports_from(base: int, count: int, taken: Collection[int]) -> list[int]:
    """The first `count` free ports from `base` up, none of them in `taken`.

    Raises `SettingError` for a base outside 1024 to 65535, `LaunchError` where too few are free.
    """
    check_port(base)
    found: list[int] = []
    for port in range(base, min(base + TRIED, 65_536)):
        if len(found) == count:
            break
        if port not in taken and port_is_free(port):
            found.append(port)
    if len(found) < count:
        raise LaunchError(
            f"only {len(found)} of {count} ports are free from {base} up; choose another port base"
        )
    return found


def _free() -> Iterator[int]:
    for port in random.sample(PORTS, TRIED):
        if port_is_free(port):
            yield port


def is_this_machine(host: str) -> bool:
    """Whether a server at `host`, a name or an address, could be on this machine; blocks to look a name up.
    One that is not known is not."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, _, _, address in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind((address[0], 0, *address[2:]))
            except OSError:
                continue
            return True
    return False
