"""KV-cache events as vLLM 0.32 publishes them, and what they show about evictions.

A message has three frames: topic, sequence number (8 bytes, big-endian, from 0 on), and in msgpack an array
`[time, events, …]`. An event is a map with its `type`, or in older versions an array that begins with it.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import msgpack

from forebay.errors import ProtocolViolation

MAX_MESSAGE_BYTES = 2 << 20
"""About 400,000 tokens in one step of the engine. Parsing takes up to about 70 times the message's bytes."""
MAX_ITEMS = 1 << 18
MAX_GROUP = 64
DEVICE = "GPU"
"""vLLM's name for the memory of any device. Other tiers are not the prefix cache."""
HASH_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Stored:
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cleared: ...


CacheEvent = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class CacheMessage:
    """The events of one step, in order. A block's number combines its hash and its group."""

    sequence: int
    events: tuple[CacheEvent, ...]


def read_message(frames: Sequence[bytes]) -> CacheMessage:
    """Parse the events in `frames`, without unknown kinds, sliding windows and other memory tiers.

    Raises only `ProtocolViolation`.
    """
    if len(frames) != 3 or len(frames[1]) != 8 or sum(map(len, frames)) > MAX_MESSAGE_BYTES:
        raise ProtocolViolation("expected three frames: a topic, 8 bytes of sequence number, and the events")
    try:
        payload = msgpack.unpackb(
            frames[2], strict_map_key=False, max_array_len=MAX_ITEMS, max_map_len=64, max_ext_len=0
        )
        events = payload[1]
        if not isinstance(payload, list) or not isinstance(events, list):
            raise TypeError("no list of events")
        read = tuple(event for event in map(_event, events) if event is not None)
    except (ValueError, TypeError, LookupError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolViolation(f"not KV-cache events: {type(error).__name__}") from None
    return CacheMessage(int.from_bytes(frames[1], "big"), read)


STORED = ("type", "block_hashes", "", "", "", "", "medium", "", "", "group_idx", "kind", "sliding_window")
REMOVED = ("type", "block_hashes", "medium", "group_idx")


def _event(event: Any) -> CacheEvent | None:
    if isinstance(event, list):
        names = STORED if event[0] == "BlockStored" else REMOVED
        event = dict(zip(names, event, strict=False))
    elif not isinstance(event, dict):
        raise TypeError("an event is neither an array nor a map")
    kind = event.get("type")
    if kind == "AllBlocksCleared":
        return Cleared()
    if kind not in ("BlockStored", "BlockRemoved") or event.get("medium") not in (None, DEVICE):
        return None
    if event.get("sliding_window", event.get("kv_cache_spec_sliding_window")) is not None:
        # Blocks outside the window are evicted early, so they show nothing about the prefix.
        return None
    group = event.get("group_idx") or 0
    if not isinstance(group, int) or not 0 <= group < MAX_GROUP:
        raise TypeError("a group is not a small number")
    hashes = event["block_hashes"] or ()
    blocks = tuple(_number(block) | group << 64 for block in hashes)
    return Stored(blocks) if kind == "BlockStored" else Removed(blocks)


def _number(block: Any) -> int:
    if isinstance(block, bytes):
        return int.from_bytes(block[-8:], "big")
    if isinstance(block, int):
        return block & HASH_MASK
    raise TypeError("a hash is neither a number nor bytes")


MAX_SAMPLED = 2048
WITNESSES = 5
"""The median of this many evictions counts: another copy of one block may still be in use."""


class CacheHorizon:
    """Finds the time before which unused blocks are no longer cached, `horizon_s`; it never decreases.

    The published blocks are of tokens and ours are of text, so they cannot be matched. But an engine evicts
    the least recently used blocks first: once a block is evicted, everything last used before it is gone. A
    fixed share of the blocks is kept, chosen by hash (spatial sampling, Waldspurger and others 2015).
    """

    def __init__(self) -> None:
        self.horizon_s = -math.inf
        self.missed = 0
        self.restarts = 0
        self._next: int | None = None
        self._moments: dict[int, float] = {}
        self._share_bits = 0
        self._evicted: deque[float] = deque([-math.inf] * WITNESSES, WITNESSES)

    def __len__(self) -> int:
        return len(self._moments)

    def read(self, message: CacheMessage, now_s: float) -> bool:
        lost = False
        if self._next is not None and message.sequence < self._next:
            self.restarts += 1
            self.clear()
            lost = True
        elif self._next is not None:
            self.missed += message.sequence - self._next
        self._next = message.sequence + 1
        for event in message.events:
            if isinstance(event, Stored):
                self._store(event.blocks, now_s)
            elif isinstance(event, Removed):
                self._remove(event.blocks)
            elif isinstance(event, Cleared):
                self.clear()
                lost = True
        return lost

    def clear(self) -> None:
        self._moments.clear()
        self._share_bits = 0
        self._evicted.extend([-math.inf] * WITNESSES)

    def _store(self, blocks: tuple[int, ...], now_s: float) -> None:
        mask = (1 << self._share_bits) - 1
        for block in blocks:
            if block & mask == 0:
                self._moments[block] = now_s
        while len(self._moments) > MAX_SAMPLED and self._share_bits < 64:
            self._share_bits += 1
            mask = (1 << self._share_bits) - 1
            self._moments = {block: at_s for block, at_s in self._moments.items() if block & mask == 0}

    def _remove(self, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            moment_s = self._moments.pop(block, None)
            if moment_s is not None:
                self._evicted.append(moment_s)
                self.horizon_s = max(self.horizon_s, median_low(self._evicted))


MAX_BLOCKS = 16_384


class BlockUsage:
    def __init__(self) -> None:
        self._used: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def used(self, blocks: Iterable[int], now_s: float) -> None:
        used = self._used
        for block in blocks:
            used[block] = now_s
            used.move_to_end(block)
        while len(used) > MAX_BLOCKS:
            used.popitem(last=False)

    def take_before(self, moment_s: float) -> list[int]:
        taken = []
        while self._used:
            block, at_s = next(iter(self._used.items()))
            if at_s >= moment_s:
                break
            del self._used[block]
            taken.append(block)
        return taken

    def clear(self) -> None:
        self._used.clear()


log = logging.getLogger(__name__)


class CacheWatch:
    """Follows what one replica evicts, in our text blocks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._horizon = CacheHorizon()
        self._usage = BlockUsage()
        self.read = self.malformed = 0

    def used(self, blocks: Sequence[int], now_s: float) -> None:
        self._usage.used(blocks, now_s)

    def receive(self, frames: Sequence[bytes], now_s: float) -> bool:
        try:
            message = read_message(frames)
        except ProtocolViolation as error:
            if not self.malformed:
                log.warning("malformed KV-cache events of %s are ignored: %s", self._name, error)
            self.malformed += 1
            return False
        self.read += 1
        lost = self._horizon.read(message, now_s)
        if lost:
            self._usage.clear()
        return lost

    def restarted(self) -> None:
        self._horizon.clear()
        self._usage.clear()

    def evicted(self, in_flight: Iterable[Sequence[int]], now_s: float) -> list[int]:
        """Return the text blocks that are gone since the last call, without those of requests in flight."""
        gone = self._usage.take_before(self._horizon.horizon_s)
        if not gone:
            return []
        in_use = {block for blocks in in_flight for block in blocks}
        kept = [block for block in gone if block in in_use]
        self._usage.used(kept, now_s)
        return [block for block in gone if block not in in_use]
