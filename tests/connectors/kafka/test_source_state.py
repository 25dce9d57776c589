"""Offsets in the state of Flink's Kafka source. With a real checkpoint: tests/pipeline/test_kafka_gaps.py."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.kafka.admin import Place
from forebay.connectors.kafka.gaps import SourceState, source_state, splits_in
from forebay.errors import SettingError


def split(topic: str, partition: int, offset: int) -> bytes:
    name = topic.encode()
    body = struct.pack(">H", len(name)) + name + struct.pack(">iqq", partition, offset, -(2**63))
    return struct.pack(">iii", len(body) + 8, 0, len(body)) + body


SPLITS = st.lists(
    st.tuples(
        st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True),
        st.integers(0, 2**31 - 1),
        st.integers(-3, 2**62),
    ),
    max_size=5,
)


@given(SPLITS, st.binary(max_size=300))
def test_splits_come_back_without_those_that_nobody_has_read(
    splits: list[tuple[str, int, int]], head: bytes
) -> None:
    data, offsets = head, []
    for each in splits:
        offsets.append(len(data))
        data += split(*each)
    assert list(splits_in(data, offsets)) == [Place(*each) for each in splits if each[2] >= 0]


@given(SPLITS.filter(bool), st.integers(0, 40))
def test_a_state_that_is_cut_off_is_refused(splits: list[tuple[str, int, int]], kept: int) -> None:
    data = split(*splits[0])
    with pytest.raises(struct.error):
        list(splits_in(data[: min(kept, len(data) - 1)], [0]))


def test_a_source_that_has_read_nothing_yet_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the job does not find its state again."""
    uid = SimpleNamespace(isPresent=lambda: True, get=lambda: "3ce2376ff803")
    other, source = SimpleNamespace(), SimpleNamespace(getOperatorUid=lambda: uid)
    states = [(split("tickets", 0, -3), [0])]
    module = "forebay.connectors.kafka.gaps"
    monkeypatch.setattr(f"{module}._operators", lambda metadata, checkpoint: [other, source])
    monkeypatch.setattr(f"{module}._reader_states", lambda each: states if each is source else [])
    assert source_state(b"", "/state/chk-7") == SourceState("3ce2376ff803", ())


@pytest.mark.flink
@pytest.mark.parametrize("metadata", [b"", b"\x49\x60\x67\x2d", b"no checkpoint" * 10])
def test_a_checkpoint_that_flink_cannot_read_is_named(flink_logs: object, metadata: bytes) -> None:
    with pytest.raises(SettingError, match=r"offsets in checkpoint /state/chk-7 cannot be read"):
        source_state(metadata, "/state/chk-7")
