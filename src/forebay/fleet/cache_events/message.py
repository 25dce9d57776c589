"""KV-cache events as vLLM publishes them: bytes to values. The form was read off vLLM 0.32.

A message has three frames: topic, sequence number (8 bytes, big-endian, from 0 on), and in msgpack an array
`[time, events, …]`. An event is a map with its `type` (vLLM 0.32), or an array with it in front (older ones).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from forebay.errors import ProtocolViolation

MAX_FRAME_BYTES = 4 << 20
"""About a million tokens in one step of the engine."""
MAX_ITEMS = 1 << 18
"""Of one array: events of a step, blocks or tokens of a prompt."""
MAX_GROUP = 64
DEVICE = "GPU"
"""What vLLM calls the memory that it computes in, on any device. Other tiers are not the prefix cache."""
HASH_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Stored:
    """These blocks are cached from now on, or are used again."""

    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """These blocks were evicted."""

    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks are gone."""


CacheEvent = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class CacheMessage:
    """The events of one step of a replica, in order. A block's number tells its hash and its group."""

    sequence: int
    events: tuple[CacheEvent, ...]


def read_message(frames: Sequence[bytes]) -> CacheMessage:
    """The events in `frames`, without those of unknown kinds, of sliding windows and of other memory tiers.

    Takes time and memory in proportion to the frames, of at most `MAX_FRAME_BYTES` each. Raises
    `ProtocolViolation` where they are not such a message; nothing else.
    """
    if len(frames) != 3 or len(frames[1]) != 8 or any(len(frame) > MAX_FRAME_BYTES for frame in frames):
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
        # What has left the window is evicted early, and says nothing of the prefix.
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
