"""By which names requests may reach the gateway.

A web page can have its own name lead to 127.0.0.1 (DNS rebinding). The browser then takes the gateway for the
page's own server: it sends no `Origin` with a GET, and lets the page read the answer. But `Host` still holds
the page's name.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address


class Hosts:
    """IP addresses, `localhost`, and `names`. Without `names`, any name at other addresses than loopback."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names)

    def allow(self, host: bytes | None, address: str) -> bool:
        """Whether a request with this `Host` may come to this address. Browsers always send one."""
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
