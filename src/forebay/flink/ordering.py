"""When a finished call may leave the operator: at once, or after those before it under its key."""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol

from forebay.records import DeadLetter, Result

Ordering = Literal["unordered", "key"]
Answer = Result | DeadLetter


class Release(Protocol):
    """Decides, for one shard, which answers may leave. Every id accepted leaves exactly once."""

    def accept(self, id: str, key: str) -> None:
        """Note a call, in the order of arrival. `id` is not in use."""
        ...

    def finish(self, id: str, answer: Answer) -> list[tuple[str, Answer]]:
        """The answers that may leave now that `id` has its own, in the order in which they must leave."""
        ...


class Unordered:
    """An answer leaves as soon as it is there."""

    def accept(self, id: str, key: str) -> None:
        pass

    def finish(self, id: str, answer: Answer) -> list[tuple[str, Answer]]:
        return [(id, answer)]


class OrderedByKey:
    """An answer leaves as soon as it is there and all that came before it under its key have left."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[str]] = {}
        self._keys: dict[str, str] = {}
        self._held: dict[str, Answer] = {}

    def accept(self, id: str, key: str) -> None:
        self._queues.setdefault(key, deque()).append(id)
        self._keys[id] = key

    def finish(self, id: str, answer: Answer) -> list[tuple[str, Answer]]:
        self._held[id] = answer
        key = self._keys[id]
        queue = self._queues[key]
        leaving = []
        while queue and queue[0] in self._held:
            head = queue.popleft()
            del self._keys[head]
            leaving.append((head, self._held.pop(head)))
        if not queue:
            del self._queues[key]
        return leaving


def release_for(ordering: Ordering) -> Release:
    """A fresh rule for one shard."""
    return Unordered() if ordering == "unordered" else OrderedByKey()
