"""Shards: the Flink keys of the inference operator, and the operator's uid, which holds their number.

Flink gives access to one key's state at a time, and wakes the operator by a timer per key. So records use few
Flink keys, evenly spread over subtasks.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

from forebay.errors import SettingError

MAX_PARALLELISM = 128
"""Flink's number of key groups; fixed, because a checkpoint can only be restored with the same number."""

ROW_HASH = 62
"""PyFlink wraps each key in a row, whose hash code is the key plus this."""

_MASK = 0xFFFFFFFF


def shard_of(key: str, shards: int) -> int:
    return (
        int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") % shards
    )


def flink_keys(shards: int) -> tuple[int, ...]:
    """The Flink key of each shard.

    Shard i gets the smallest key whose group is the first of subtask `i * parallelism // shards`.
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
    """As in `KeyGroupRangeAssignment.assignToKeyGroup` and `MathUtils.murmurHash`."""
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
    """As in `KeyGroupRangeAssignment.computeOperatorIndexForKeyGroup`."""
    return key_group(key) * parallelism // MAX_PARALLELISM


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


UID = re.compile(r"(?P<name>.*): (?P<shards>\d+) shards", re.DOTALL)


def shards_uid(env: Any, name: str, shards: int, *, bound: bool) -> str:
    """The uid of the operator `name`, by which Flink finds its state; a restored number of shards stays.

    If the number is `bound` (a key's state or order depends on it), another one raises `SettingError`.
    """
    for uid in restored_uids(env) or ():
        found = UID.fullmatch(uid)
        if found is None or found["name"] != name:
            continue
        if bound and int(found["shards"]) != shards:
            raise SettingError(
                f"shards: expected {found['shards']}, as in the checkpoint that {name!r} resumes from, found "
                f"{shards}: the events of a key would lose their order, a program the state of its keys, and "
                f"a budget what they have spent. Keep the number, or start over with another directory of "
                f"checkpoints"
            )
        return uid
    return f"{name}: {shards} shards"


def name_of(uid: str | None) -> str | None:
    found = UID.fullmatch(uid or "")
    return uid if found is None else found["name"]


def restored_uids(env: Any) -> frozenset[str] | None:
    from py4j.protocol import Py4JError
    from pyflink.java_gateway import get_gateway

    jvm = get_gateway().jvm
    options = env._j_stream_execution_environment.getConfiguration()
    checkpoint = options.get(jvm.org.apache.flink.configuration.StateRecoveryOptions.SAVEPOINT_PATH)
    if checkpoint is None:
        return None
    try:
        uids = (operator.getOperatorUid() for operator in operator_states(jvm, checkpoint))
        return frozenset(str(uid.get()) for uid in uids if uid.isPresent())
    except Py4JError:
        return None


def operator_states(jvm: Any, checkpoint: str) -> Any:
    """Raises `Py4JError` if the checkpoint cannot be read."""
    flink = jvm.org.apache.flink
    path = flink.core.fs.Path(checkpoint, "_metadata")
    data = jvm.java.io.DataInputStream(path.getFileSystem().open(path))
    try:
        loader = jvm.Thread.currentThread().getContextClassLoader()
        metadata = flink.runtime.checkpoint.Checkpoints.loadCheckpointMetadata(data, loader, checkpoint)
    finally:
        data.close()
    return jvm.java.util.ArrayList(metadata.getOperatorStates())
