"""One replica's events held against what we know of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.errors import ProtocolViolation
from forebay.fleet.cache_events.horizon import CacheHorizon
from forebay.fleet.cache_events.message import read_message
from forebay.fleet.cache_events.usage import BlockUsage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheEventCounts:
    """What came of one replica's events.

    Messages that were read, that were missed and that were none; restarts; text blocks that were forgotten.
    """

    read: int
    missed: int
    malformed: int
    restarts: int
    forgotten: int


class CacheWatch:
    """What one replica evicts, in our text blocks. Pure: moments are passed in, of one clock."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._horizon = CacheHorizon()
        self._usage = BlockUsage()
        self._read = self._malformed = self._forgotten = 0

    @property
    def counts(self) -> CacheEventCounts:
        horizon = self._horizon
        return CacheEventCounts(
            self._read, horizon.missed, self._malformed, horizon.restarts, self._forgotten
        )

    def used(self, blocks: Sequence[int], now_s: float) -> None:
        """A request with these blocks was sent there, or has ended there."""
        self._usage.used(blocks, now_s)

    def heard(self, frames: Sequence[bytes], now_s: float) -> bool:
        """A message came; whether the replica has lost its whole cache. Raises nothing."""
        try:
            message = read_message(frames)
        except ProtocolViolation as error:
            if not self._malformed:
                log.warning(
                    "KV-cache events of %s are passed over where they are wrong: %s", self._name, error
                )
            self._malformed += 1
            return False
        self._read += 1
        lost = self._horizon.read(message, now_s)
        if lost:
            self._usage.clear()
        return lost

    def restarted(self) -> None:
        """The replica was started anew."""
        self._horizon.clear()
        self._usage.clear()

    def evicted(self, in_flight: Iterable[Sequence[int]], now_s: float) -> list[int]:
        """The text blocks that are gone since the last call. Those of requests in flight are in use."""
        gone = self._usage.take_before(self._horizon.horizon_s)
        if not gone:
            return []
        in_use = {block for blocks in in_flight for block in blocks}
        kept = [block for block in gone if block in in_use]
        self._usage.used(kept, now_s)
        gone = [block for block in gone if block not in in_use]
        self._forgotten += len(gone)
        return gone
