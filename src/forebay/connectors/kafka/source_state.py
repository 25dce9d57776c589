"""Read the Kafka offsets in a checkpoint from the state of Flink's source."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyflink.java_gateway import get_gateway

from forebay.connectors.kafka.admin import Place
from forebay.errors import SettingError

STATE = "SourceReaderState"
"""Flink's name of the readers' splits."""
INT = struct.Struct(">i")
NAME_LENGTH = struct.Struct(">H")
SPLIT = struct.Struct(">iqq")
"""Partition, next offset, last offset: follow the topic's name in Flink's encoding of a split."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """Of a checkpoint. `uid`: the source's, if any. `places`: offsets to read next, without partitions
    whose reader has not started.
    """

    uid: str | None
    places: tuple[Place, ...]


def source_state(metadata: bytes, checkpoint: str) -> SourceState | None:
    """Parse a checkpoint's `_metadata` with Flink's own classes; None if it has no Kafka source.

    Raises `SettingError`, naming the `checkpoint`, if that fails.
    """
    try:
        for operator in _operators(metadata, checkpoint):
            readers = list(_reader_states(operator))
            if readers:
                found = [place for data, at in readers for place in splits_in(data, at)]
                uid = operator.getOperatorUid()
                return SourceState(str(uid.get()) if uid.isPresent() else None, tuple(found))
    except (Py4JJavaError, struct.error, UnicodeDecodeError) as error:
        raise SettingError(
            f"the Kafka offsets in checkpoint {checkpoint} cannot be read ({type(error).__name__}): the "
            f"checkpoint is damaged; name an earlier one with --from-checkpoint, or start over with --fresh"
        ) from None
    return None


def splits_in(data: bytes, offsets: list[int]) -> Iterator[Place]:
    """Raises `struct.error` if `data` is truncated."""
    for begin in offsets:
        # Skips the length of the split with its head, the version of its encoding, and its own length.
        at = begin + 3 * INT.size
        (length,) = NAME_LENGTH.unpack_from(data, at)
        name, rest = at + NAME_LENGTH.size, at + NAME_LENGTH.size + length
        topic = data[name:rest].decode()
        partition, offset, _ = SPLIT.unpack_from(data, rest)
        # Negative numbers: offsets that the reader has not looked up yet.
        if offset >= 0:
            yield Place(topic, partition, offset)


def _operators(metadata: bytes, checkpoint: str) -> list[Any]:
    jvm = get_gateway().jvm
    stream = jvm.java.io.DataInputStream(jvm.java.io.ByteArrayInputStream(metadata))
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found = jvm.org.apache.flink.runtime.checkpoint.Checkpoints.loadCheckpointMetadata(
        stream, loader, checkpoint
    )
    return list(found.getOperatorStates().toArray())


def _reader_states(operator: Any) -> Iterator[tuple[bytes, list[int]]]:
    for subtask in operator.getStates().toArray():
        for handle in subtask.getManagedOperatorState().toArray():
            state = handle.getStateNameToPartitionOffsets().get(STATE)
            if state is None:
                continue
            stream = handle.openInputStream()
            try:
                yield bytes(stream.readAllBytes()), list(state.getOffsets())
            finally:
                stream.close()
