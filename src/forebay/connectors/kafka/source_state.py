"""Where a checkpoint is in its Kafka topics: the offsets in the state of Flink's source."""

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
"""Name of the state in which each reader of a source keeps its splits."""
INT = struct.Struct(">i")
NAME_LENGTH = struct.Struct(">H")
SPLIT = struct.Struct(">iqq")
"""Partition, next offset, last offset: what follows the topic's name in Flink's form of a split."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """What a checkpoint keeps of its Kafka source. `uid` is the source's own, None if it had none; `places`
    are the offsets to read next; a partition whose reader has not started is not among them."""

    uid: str | None
    places: tuple[Place, ...]


def source_state(metadata: bytes, checkpoint: str) -> SourceState | None:
    """The Kafka source's state in a checkpoint, given its `_metadata`; None if it has no source.

    Flink's own classes read it. Raises `SettingError`, naming the `checkpoint`, if they cannot.
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
    """The splits that begin at `offsets` of a reader's state. Raises `struct.error` if `data` is cut off."""
    for begin in offsets:
        # The length of the split with its head, the version of its form, its own length.
        at = begin + 3 * INT.size
        (length,) = NAME_LENGTH.unpack_from(data, at)
        name, rest = at + NAME_LENGTH.size, at + NAME_LENGTH.size + length
        topic = data[name:rest].decode()
        partition, offset, _ = SPLIT.unpack_from(data, rest)
        # Negative numbers stand for offsets that the reader has not looked up yet.
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
