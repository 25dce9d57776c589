"""What tells a fleet which replicas there are."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
from yarl import URL

from forebay.engine.client import replica_url
from forebay.errors import SettingError

MAX_REPLICAS = 1000


class ReplicaList(Protocol):
    """The addresses of a fleet's replicas, now. Picklable; holds no connection."""

    @property
    def every_s(self) -> float:
        """How often to ask again; infinite where the answer never changes."""
        ...

    async def urls(self) -> tuple[str, ...]:
        """The URLs, each once. Raises `SettingError` where they cannot be told: the last answer stays."""
        ...


def checked(urls: Iterable[object], *, where: str) -> tuple[str, ...]:
    """`urls` without repetition. Raises `SettingError`, naming `where`, for none, too many or a bad one."""
    found: dict[str, None] = {}
    for url in urls:
        if not isinstance(url, str):
            raise SettingError(f"{where}: expected URLs, found {type(url).__name__}")
        try:
            found[replica_url(url)] = None
        except SettingError as error:
            raise SettingError(f"{where}: {error}") from None
        if len(found) > MAX_REPLICAS:
            raise SettingError(f"{where}: holds more than {MAX_REPLICAS} replicas")
    if not found:
        raise SettingError(f"{where}: holds no replica; expected at least one URL")
    return tuple(found)


@dataclass(frozen=True)
class FixedReplicas:
    """A fixed list. Raises `SettingError` at construction for a URL that cannot be a replica's."""

    given: tuple[str, ...]
    every_s: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", checked(self.given, where="the list of replicas"))

    async def urls(self) -> tuple[str, ...]:
        return self.given


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


MAX_BYTES = 256 << 10


@dataclass(frozen=True)
class FileReplicas:
    """A file of URLs, read every `every_s`: one per line (`#` begins a comment), or a list in YAML or JSON.

    Replace it as a whole (write beside it, then rename): half a list is a list too.
    """

    path: str
    every_s: float = 2.0

    async def urls(self) -> tuple[str, ...]:
        return await asyncio.get_running_loop().run_in_executor(None, read_replicas, Path(self.path))


def read_replicas(path: Path) -> tuple[str, ...]:
    """The URLs in the file; blocks. Raises `SettingError` where it cannot be read or holds none."""
    where = f"replica file {path}"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingError(f"{where} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise SettingError(f"{where} is larger than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingError(f"{where} is not UTF-8: wrong byte at position {error.start}") from None
    return checked(_entries(text, where), where=where)


def _entries(text: str, where: str) -> Iterable[object]:
    if text.lstrip().startswith("["):
        try:
            value: Any = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise SettingError(f"{where} is no JSON list of URLs: {error}") from None
        return list(value)
    # A list in YAML is lines too, each with a dash and perhaps in quotes.
    lines = (line.split("#", 1)[0].strip().removeprefix("- ").strip(" \t'\"") for line in text.splitlines())
    return [line for line in lines if line]
