"""The list of replicas that are started and drained as needed, in a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from forebay.engine.client import replica_url
from forebay.errors import SettingError
from forebay.files import read_bytes, write_atomic
from forebay.fleet.discovery import MAX_REPLICAS, polled

MAX_BYTES = 256 << 10


class Listing(tuple[str, ...]):
    """URLs of replicas that may get requests, perhaps none. `version` grows with each change; `wanted` is how
    many there should be."""

    version: int
    wanted: int

    def __new__(cls, urls: Iterable[str], version: int = 0, wanted: int = 0) -> Listing:
        made = super().__new__(cls, urls)
        made.version = version
        made.wanted = wanted
        return made


@dataclass(frozen=True)
class ScaledReplicas:
    """The `ReplicaList` of a scaled fleet, read from the file of `write_listing`.

    It may be empty: replicas are started when requests wait.
    """

    path: str
    every_s: float = 0.5

    async def urls(self) -> tuple[str, ...]:
        return await asyncio.get_running_loop().run_in_executor(None, read_listing, Path(self.path))

    def updates(self) -> AsyncGenerator[tuple[str, ...] | SettingError, None]:
        return polled(self.urls, self.every_s)


def write_listing(path: Path, listing: Listing) -> None:
    """Replace the file at `path`; blocks."""
    document = {"version": listing.version, "wanted": listing.wanted, "replicas": list(listing)}
    write_atomic(path, orjson.dumps(document))


def read_listing(path: Path) -> Listing:
    """Read the file at `path`; blocks. Raises `SettingError` if it cannot be read."""
    where = f"the list of replicas {path}"
    try:
        found: Any = orjson.loads(read_bytes(path, MAX_BYTES, where))
        urls, version, wanted = found["replicas"], found["version"], found["wanted"]
        if not isinstance(urls, list) or type(version) is not int or type(wanted) is not int:
            raise TypeError("a value of another type")
        if len(urls) > MAX_REPLICAS:
            raise TypeError(f"more than {MAX_REPLICAS} replicas")
        return Listing(dict.fromkeys(replica_url(url) for url in urls), version, wanted)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise SettingError(
            f"{where} is none: {error}; its owner writes it anew with the next change"
        ) from None
