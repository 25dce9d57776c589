"""Keeps the scaling's learned values in the operator's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forebay.fleet.autoscale.learned import saved_ms
from forebay.stateful.machine import Store

LEARNED = "learned"
SCALING_NAME = "scaling"


class ScalingStateSlot:
    def __init__(self) -> None:
        self.found: bytes | None = None
        self.newest: bytes | None = None

    def take(self) -> bytes | None:
        found, self.found = self.found, None
        return found


class LearnedState:
    def __init__(self, store: Store, mail: ScalingStateSlot) -> None:
        self._store = store
        self._mail = mail
        self._key: int | None = None
        self._written: bytes | None = None

    def restore(self, keys: Callable[[], Iterable[int]]) -> None:
        newest_ms = -2
        for key in keys():
            data = self._store.get(SCALING_NAME) or b""
            if (at_ms := saved_ms(data)) > newest_ms:
                newest_ms, self._key, self._mail.found = at_ms, key, data
        for key in keys():
            if key != self._key:
                self._store.remove(SCALING_NAME)

    def place(self, shards: Iterable[int]) -> Iterable[int]:
        if self._mail.newest is None or self._mail.newest is self._written:
            return ()
        if self._key is None:
            self._key = next(iter(shards), None)
        return () if self._key is None else (self._key,)

    def write(self) -> None:
        newest = self._mail.newest
        if newest is not None:
            self._store.put(SCALING_NAME, newest)
            self._written = newest
