"""Reloads API keys when their files change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from forebay.clock import SystemClock
from forebay.errors import SettingError
from forebay.gateway.keys import KeyEntry, KeyRing
from forebay.gateway.spec import GatewaySpec
from forebay.settings import read_secret

LOG = logging.getLogger("forebay.gateway")
LOOK_S = 2.0

Stamps = tuple[tuple[int, int, int] | None, ...]


def read_keys(spec: GatewaySpec) -> list[KeyEntry]:
    """Name, secret and limits of each key; blocks. Raises `SettingError` for a missing or repeated secret."""
    keys = [
        KeyEntry(key.name, read_secret(key.key.ref()), key.limits(), key.cache_group) for key in spec.keys
    ]
    secrets = {entry.key for entry in keys}
    if len(secrets) < len(keys):
        raise SettingError("keys: expected keys that differ, found one under two names")
    monitoring = spec.monitoring.key
    if monitoring is not None and read_secret(monitoring.ref()) in secrets:
        raise SettingError("monitoring.key: expected another key than those in keys, found the same")
    return keys


class KeyReload:
    """Replaces the keys of `ring` when the settings at `path`, or a file with a key, change.

    Invalid settings are logged and leave the old keys in place; so do settings without keys, which would open
    the gateway to everybody.
    """

    def __init__(
        self,
        ring: KeyRing,
        spec: GatewaySpec,
        load: Callable[[], GatewaySpec],
        path: Path | None,
    ) -> None:
        self._ring = ring
        self._spec = spec
        self._load = load
        self._path = path
        self._clock = SystemClock()
        self._stamps = self._look()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                keys = await loop.run_in_executor(None, self.changed)
            except SettingError as error:
                LOG.error(
                    "the keys were not reloaded; the last %d stay valid: %s", len(self._ring.names), error
                )
            except Exception:
                LOG.exception("the keys were not reloaded; the last %d stay valid", len(self._ring.names))
            else:
                if keys is not None:
                    self.apply(keys)

    def changed(self) -> list[KeyEntry] | None:
        """New keys if a file has changed since the last call; blocks. Raises `SettingError` once per invalid
        change.
        """
        stamps = self._look()
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        spec = self._load()
        keys = read_keys(spec)
        if not keys and self._spec.keys:
            raise SettingError(
                "keys: expected at least one, found none; restart the gateway to let everybody in"
            )
        rest = {"keys": ()}
        if spec.model_copy(update=rest) != self._spec.model_copy(update=rest):
            LOG.warning("only the keys were reloaded; the other changed settings need a restart")
        self._spec = spec
        self._stamps = self._look()
        return keys

    def apply(self, keys: list[KeyEntry]) -> None:
        before = set(self._ring.names)
        self._ring.replace(keys, self._clock.monotonic_s())
        after = set(self._ring.names)
        changes = [f"added {name}" for name in sorted(after - before)]
        changes += [f"removed {name}" for name in sorted(before - after)]
        LOG.info("%d keys were reloaded: %s", len(after), ", ".join(changes) or "the same names")

    def _look(self) -> Stamps:
        return tuple(map(_stamp, self._files()))

    def _files(self) -> Iterator[Path]:
        if self._path is not None:
            yield self._path
        for key in self._spec.keys:
            if key.key.file is not None:
                yield Path(key.key.file)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
