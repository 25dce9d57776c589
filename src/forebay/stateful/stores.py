"""Where a shard's state lies: Flink's map states in a job, plain dictionaries in tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Store(Protocol):
    """Bytes by name, of one shard; what Flink's `MapState` offers."""

    def get(self, key: str) -> bytes | None:
        """None where there is nothing."""
        ...

    def put(self, key: str, value: bytes) -> None: ...

    def remove(self, key: str) -> None: ...

    def items(self) -> Iterable[tuple[str, bytes]]: ...


@dataclass(frozen=True, slots=True)
class Stores:
    """`keys`: what each key remembers; never walked through. `work`: calls in flight, what waits for them,
    and the times at which timers are due; read as a whole after a restore. `due`: the keys to look at then,
    in lists of a bounded length, and the times that were noted for a key that is forgotten."""

    keys: Store
    work: Store
    due: Store


class DictStore(dict[str, bytes]):
    """A `Store` in memory."""

    def put(self, key: str, value: bytes) -> None:
        self[key] = value

    def remove(self, key: str) -> None:
        del self[key]
