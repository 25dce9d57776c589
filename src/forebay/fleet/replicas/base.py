"""What tells a fleet which replicas there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

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
