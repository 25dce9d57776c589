"""Replicas that one name resolves to, as of a headless service."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from yarl import URL

from forebay.engine.client import replica_url
from forebay.errors import SettingError
from forebay.fleet.replicas.base import checked


@dataclass(frozen=True)
class DnsReplicas:
    """Every address of the host in `url` is a replica; resolved again every `every_s`.

    `http` only: an address has no certificate. Raises `SettingError` at construction for another URL.
    """

    url: str
    every_s: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", replica_url(self.url))
        if URL(self.url).scheme != "http":
            raise SettingError(
                f"dns: expected http://NAME:PORT, found {self.url}; list https replicas by name"
            )

    async def urls(self) -> tuple[str, ...]:
        parsed = URL(self.url)
        host, port = parsed.host or "", parsed.port or 80
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or type(error).__name__
            raise SettingError(f"the name {host} cannot be resolved: {said}") from None
        addresses = sorted({str(entry[4][0]) for entry in found})
        return checked((str(parsed.with_host(address)) for address in addresses), where=f"the name {host}")
