"""Shards: the Flink keys of the inference operator.

Flink gives access to the state of one key at a time, and wakes the operator by a timer per key. So records
are spread over a small, fixed number of Flink keys by a hash of their key; order within a key is kept inside
its shard. Flink keys are chosen so that shards are spread evenly over subtasks, exactly if the parallelism
divides their number.
"""

from __future__ import annotations

from hashlib import blake2b

MAX_PARALLELISM = 128
"""Flink's number of key groups; fixed, because a checkpoint can only be restored with the same number."""

ROW_HASH = 62
"""PyFlink wraps each key in a row, whose hash code is the key plus this."""

_MASK = 0xFFFFFFFF


def shard_of(key: str, shards: int) -> int:
    """The shard 0 … shards - 1 of a record's key; the same in every process."""
    return (
        int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") % shards
    )


def flink_keys(shards: int) -> tuple[int, ...]:
    """The Flink key (an int, 0 or above) of each shard.

    Shard i gets the smallest key whose key group is where subtask `i * parallelism // shards` begins its
    share, so that no two shards are in one key group.
    """
    groups = {i * MAX_PARALLELISM // shards: i for i in range(shards)}
    keys: dict[int, int] = {}
    candidate = 0
    while len(keys) < shards:
        shard = groups.get(key_group(candidate))
        if shard is not None:
            keys.setdefault(shard, candidate)
        candidate += 1
    return tuple(keys[i] for i in range(shards))


def key_group(key: int) -> int:
    return _group(key + ROW_HASH)


def _group(code: int) -> int:
    """Flink's key group of a hash code: its murmur hash modulo the number of groups, as in
    `KeyGroupRangeAssignment.assignToKeyGroup` and `MathUtils.murmurHash`."""
    code = (code * 0xCC9E2D51) & _MASK
    code = _rotate_left(code, 15)
    code = (code * 0x1B873593) & _MASK
    code = _rotate_left(code, 13)
    code = (code * 5 + 0xE6546B64) & _MASK
    code ^= 4
    code ^= code >> 16
    code = (code * 0x85EBCA6B) & _MASK
    code ^= code >> 13
    code = (code * 0xC2B2AE35) & _MASK
    code ^= code >> 16
    signed = code - (1 << 32) if code >= 1 << 31 else code
    if signed >= 0:
        return signed % MAX_PARALLELISM
    return (-signed if signed != -(1 << 31) else 0) % MAX_PARALLELISM


def subtask_of(key: int, parallelism: int) -> int:
    """The subtask that owns a Flink key (`KeyGroupRangeAssignment.computeOperatorIndexForKeyGroup`)."""
    return key_group(key) * parallelism // MAX_PARALLELISM


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
