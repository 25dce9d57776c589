"""What scaling has learned, in the state of one of a subtask's shards, for a restore.

The event loop learns, and the operator's thread has the state; a `ScalingStateSlot` is between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forebay.fleet.autoscale.learned import saved_ms
from forebay.stateful.machine import Store

LEARNED = "learned"
NAME = "scaling"


class ScalingStateSlot:
    """`found`: restored, taken by the event loop. `newest`: to be kept, for the operator's thread."""

    def __init__(self) -> None:
        self.found: bytes | None = None
        self.newest: bytes | None = None

    def take(self) -> bytes | None:
        found, self.found = self.found, None
        return found


class LearnedState:
    """Keeps the newest of `mail` in `store`, under one key of the subtask. For the operator's thread.

    After a restore at another parallelism, a subtask may find several or none: it keeps the newest and
    removes the others, or learns again.
    """

    def __init__(self, store: Store, mail: ScalingStateSlot) -> None:
        self._store = store
        self._mail = mail
        self._key: int | None = None
        self._written: bytes | None = None

    def restore(self, keys: Callable[[], Iterable[int]]) -> None:
        """Pass what the state holds to the event loop. `keys` yields the keys with state; the last one
        yielded is current."""
        newest_ms = -2
        for key in keys():
            data = self._store.get(NAME) or b""
            if (at_ms := saved_ms(data)) > newest_ms:
                newest_ms, self._key, self._mail.found = at_ms, key, data
        for key in keys():
            if key != self._key:
                self._store.remove(NAME)

    def place(self, shards: Iterable[int]) -> Iterable[int]:
        """The key, one of `shards`, under which to `write` now; empty if there is nothing to write."""
        if self._mail.newest is None or self._mail.newest is self._written:
            return ()
        if self._key is None:
            self._key = next(iter(shards), None)
        return () if self._key is None else (self._key,)

    def write(self) -> None:
        newest = self._mail.newest
        if newest is not None:
            self._store.put(NAME, newest)
            self._written = newest
