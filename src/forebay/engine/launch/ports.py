"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Collection

from forebay.engine.launch.spec import LOOPBACK
from forebay.errors import LaunchError, SettingError

TRIED = 1000


def port_is_free(port: int) -> bool:
    """Whether a server could listen on it now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
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
