"""Free TCP ports, for servers that must be given one before they start."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterator

from forebay.errors import LaunchError, SettingError

PORTS = range(20_000, 30_000)
"""Outside the range for outgoing connections (Linux: from 32,768), which could take a port between check and
start.
"""
TRIED = 1000


def free_port() -> int:
    """A TCP port that was free a moment ago. Raises `LaunchError` if there is none."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Distinct free ports in random order, so that concurrent callers find different ones."""
    found = [port for port, _ in zip(_free(), range(count), strict=False)]
    if len(found) < count:
        raise LaunchError(
            f"only {len(found)} of {count} ports are free, of {TRIED} tried from {PORTS.start} to "
            f"{PORTS.stop - 1}"
        )
    return found


def port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Like servers do: ports with connections in TIME_WAIT are free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def check_port(port: int) -> None:
    if not 1024 <= port <= 65_535:
        raise SettingError(f"port {port} is outside 1024 to 65535")


def free_ports_from(base: int, count: int, taken: Collection[int]) -> list[int]:
    """The first `count` free ports from `base` up, except `taken`. Raises `SettingError` or `LaunchError`."""
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
