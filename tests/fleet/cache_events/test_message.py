"""KV-cache events as bytes: both forms that vLLM has had, and anything else."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ProtocolViolation
from forebay.fleet.cache_events.message import (
    MAX_FRAME_BYTES,
    MAX_ITEMS,
    CacheMessage,
    Cleared,
    Removed,
    Stored,
    read_message,
)


def read(*events: Any, sequence: int = 7) -> CacheMessage:
    return read_frame(msgpack.packb([1795298088.18, list(events), 0]), sequence=sequence)


def read_frame(payload: bytes, *, sequence: int = 7) -> CacheMessage:
    return read_message([b"", sequence.to_bytes(8, "big"), payload])


def stored(*hashes: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": list(range(128)),
        "block_size": 128,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None],
        "group_idx": 0,
        **more,
    }


def removed(*hashes: Any, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0, **more}


def test_events_as_maps() -> None:
    message = read(removed(5), stored(1, 2**64 - 1), {"type": "AllBlocksCleared"}, sequence=2**63)
    assert message == CacheMessage(2**63, (Removed((5,)), Stored((1, 2**64 - 1)), Cleared()))


def test_events_as_arrays_of_older_servers() -> None:
    message = read(
        ["BlockStored", [b"\1" * 32, 9], None, [1, 2], 2, None],
        ["BlockStored", [3], 9, [1, 2], 2, None, "CPU"],
        ["BlockRemoved", [9], "GPU"],
        ["BlockRemoved", [9]],
        ["AllBlocksCleared"],
    )
    number = int.from_bytes(b"\1" * 8, "big")
    assert message.events == (Stored((number, 9)), Removed((9,)), Removed((9,)), Cleared())


def test_a_hash_in_another_group_is_another_block() -> None:
    first, second = read(stored(4), stored(4, group_idx=1)).events
    assert first != second
    assert read(removed(4, group_idx=1)).events == (Removed(second.blocks),)


@pytest.mark.parametrize(
    "event",
    [
        stored(1, medium="CPU"),
        removed(1, medium="STORAGE"),
        stored(1, kv_cache_spec_sliding_window=4096),
        {"type": "SomethingNew", "block_hashes": 3},
        ["SomethingNew"],
    ],
)
def test_what_says_nothing_of_the_prefix_cache_is_passed_over(event: Any) -> None:
    assert read(event, removed(1)).events == (Removed((1,)),)


def test_no_hashes_are_no_blocks() -> None:
    assert read(stored() | {"block_hashes": None}).events == (Stored(()),)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgpack.packb(5),
        msgpack.packb([1.0]),
        msgpack.packb([1.0, 5]),
        msgpack.packb({1: []}),
        msgpack.packb([1.0, [5]]),
        msgpack.packb([1.0, [[]]]),
        msgpack.packb([1.0, [stored("text")]]),
        msgpack.packb([1.0, [stored(1, group_idx=64)]]),
        msgpack.packb([1.0, [stored(1, group_idx=-1)]]),
        msgpack.packb([1.0, [{"type": "BlockRemoved"}]]),
        msgpack.packb([1.0, [removed(*([0] * (MAX_ITEMS + 1)))]]),
        msgpack.packb([1.0, []]) + b"\0",
        msgpack.packb({(1,): 2}),
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_other_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read_frame(payload)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"", bytes(8)],
        [b"", bytes(7), msgpack.packb([1.0, []])],
        [b"", bytes(8), msgpack.packb([1.0, []]), b""],
        [b"", bytes(8), bytes(MAX_FRAME_BYTES + 1)],
    ],
)
def test_other_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolViolation):
        read_message(frames)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "block_hashes", "medium", "group_idx"]) | st.text(), inner, max_size=4
        )
    ),
    max_leaves=12,
)
KINDS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"])
EVENTS = st.lists(
    st.tuples(KINDS, ANY, ANY).map(list)
    | st.fixed_dictionaries({"type": KINDS}, optional={"block_hashes": ANY, "group_idx": ANY, "medium": ANY})
    | ANY,
    max_size=4,
)


@given(
    st.binary(max_size=200) | ANY.map(msgpack.packb) | EVENTS.map(lambda events: msgpack.packb([1.0, events]))
)
def test_nothing_raises_anything_else(payload: bytes) -> None:
    try:
        message = read_frame(payload)
    except ProtocolViolation:
        return
    for event in message.events:
        assert isinstance(event, Cleared) or all(0 <= block < 2**70 for block in event.blocks)
