"""Records that a topic has lost before they were read."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.kafka.admin import Place
from forebay.connectors.kafka.cluster import marked
from forebay.connectors.kafka.gaps import (
    MAX_NAMED,
    Gap,
    SourceState,
    TopicRanges,
    find_gaps,
    gaps_text,
    moved,
    next_generations,
    source_state,
    splits_in,
    unread,
)
from forebay.errors import SettingError

IDS = {"a": "id-a"}


def topics(begin: int, end: int, ids: Mapping[str, str] = IDS) -> TopicRanges:
    """One topic `a` with one partition."""
    return TopicRanges((Place("a", 0, begin),), (Place("a", 0, end),), ids)


@pytest.mark.parametrize(
    ("at", "begin", "end", "kind"),
    [
        (5, 0, 9, None),
        (5, 5, 9, None),
        (5, 0, 5, None),
        (5, 5, 5, None),
        (0, 0, 0, None),
        (5, 6, 9, "deleted"),
        (5, 9, 9, "deleted"),
        (5, 0, 4, "shrunk"),
        (5, 0, 0, "shrunk"),
    ],
)
def test_position_is_compared_with_the_log(at: int, begin: int, end: int, kind: str | None) -> None:
    found = find_gaps([Place("a", 0, at)], topics(begin, end), IDS)
    assert [gap.kind for gap in found] == ([] if kind is None else [kind])


def test_recreated_topic_is_a_gap_whatever_its_log() -> None:
    (gap,) = find_gaps([Place("a", 0, 5)], topics(0, 9, {"a": "another"}), IDS)
    assert (gap.kind, gap.now, gap.records) == ("recreated", 0, 0)


def test_missing_topic_or_partition() -> None:
    assert find_gaps([Place("gone", 0, 5)], topics(0, 9), {"gone": "x"}) == ()
    (gap,) = find_gaps([Place("a", 1, 5)], topics(0, 9), IDS)
    assert gap.kind == "shrunk"


def test_topic_without_a_recorded_id_is_judged_by_its_log() -> None:
    assert find_gaps([Place("a", 0, 5)], topics(0, 9), {}) == ()


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.booleans())
def test_next_record_is_in_the_log(at: int, begin: int, length: int, again: bool) -> None:
    now = topics(begin, begin + length, {"a": "another"} if again else IDS)
    places = (Place("a", 0, at),)
    (place,) = moved(places, find_gaps(places, now, IDS))
    assert begin <= place.offset <= begin + length
    assert find_gaps((place,), now, now.ids) == ()
    if not again and begin <= at <= begin + length:
        assert place.offset == at


def test_answered_records_are_not_a_gap() -> None:
    (gap,) = find_gaps([Place("a", 0, 5)], topics(9, 9), IDS)
    assert unread([gap], [Place("a", 0, 9)]) == ()
    assert unread([gap], [Place("a", 0, 10)]) == ()
    assert unread([gap], [Place("a", 0, 7)]) == (replace(gap, offset=7),)
    assert unread([gap], [Place("a", 0, 5), Place("b", 0, 9)]) == (gap,)
    (again,) = find_gaps([Place("a", 0, 5)], topics(0, 9, {"a": "another"}), IDS)
    assert unread([again], [Place("a", 0, 9)]) == (again,)


def test_each_topic_of_a_name_has_its_own_mark() -> None:
    first = next_generations({}, IDS, ())
    assert marked("a", first) == "a"
    assert next_generations(first, IDS, ()) == first
    second = next_generations(first, {"a": "another"}, ())
    assert marked("a", second) == "a~2"
    shrunk = next_generations(second, {"a": "another"}, [Gap("shrunk", "a", 0, 5, 4)])
    assert marked("a", shrunk) == "a~3"
    assert next_generations(second, {"a": "another"}, [Gap("deleted", "a", 0, 5, 9)]) == second
    assert marked("unknown", second) == "unknown"
    # A topic that is not there now may come back.
    assert next_generations(second, {}, ()) == second


def test_a_text_names_partitions_and_ranges() -> None:
    gaps = [Gap("deleted", "a", n, 5, 7) for n in range(MAX_NAMED + 3)]
    text = gaps_text(gaps)
    assert text.startswith("a/0: offsets 5 to 6 were deleted unread (2 records at most); a/1: ")
    assert text.endswith("; and 3 more partitions")
    assert "ends at offset 7, before the next offset to read, 9" in gaps_text([Gap("shrunk", "a", 0, 9, 7)])


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
def test_splits_are_restored_without_unread_ones(splits: list[tuple[str, int, int]], head: bytes) -> None:
    data, offsets = head, []
    for each in splits:
        offsets.append(len(data))
        data += split(*each)
    assert list(splits_in(data, offsets)) == [Place(*each) for each in splits if each[2] >= 0]


@given(SPLITS.filter(bool), st.integers(0, 40))
def test_truncated_state_is_rejected(splits: list[tuple[str, int, int]], kept: int) -> None:
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
def test_unreadable_checkpoint_is_named(flink_logs: object, metadata: bytes) -> None:
    with pytest.raises(SettingError, match=r"offsets in checkpoint /state/chk-7 cannot be read"):
        source_state(metadata, "/state/chk-7")
