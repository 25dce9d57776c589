from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import Tokens
from forebay.fleet.autoscale.meter import (
    COUNTED_S,
    STANDS_S,
    RecordCost,
    StandingRecords,
    TopicBacklog,
    TopicQueue,
    decode_backlog,
    encode_backlog,
)

COUNTS = st.integers(0, 10**12)


@given(st.none() | st.builds(TopicBacklog, COUNTS, st.none() | COUNTS, st.none() | COUNTS, st.floats(0, 1e9)))
def test_sent_backlog_is_received_unchanged(backlog: TopicBacklog | None) -> None:
    assert decode_backlog(encode_backlog(backlog)) == backlog


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"records": 5}',
        b'{"records": -1, "prompt_tokens": null, "completion_tokens": null, "age_s": 0}',
        b'{"records": 1e30, "prompt_tokens": null, "completion_tokens": null, "age_s": 0}',
        b'{"records": 1, "prompt_tokens": 1.5, "completion_tokens": null, "age_s": 0}',
        b'{"records": 1, "prompt_tokens": null, "completion_tokens": null, "age_s": -1}',
        b'{"records": 1, "prompt_tokens": null, "completion_tokens": null, "age_s": null}',
    ],
)
def test_invalid_backlog_is_one_error(data: bytes) -> None:
    with pytest.raises(SettingError):
        decode_backlog(data)


@given(st.binary(max_size=200))
def test_any_bytes_parse_as_a_backlog_or_one_error(data: bytes) -> None:
    try:
        found = decode_backlog(data)
    except SettingError:
        return
    assert found is None or 0 <= found.records <= 10**15


def test_record_cost_is_estimated_from_earlier_records() -> None:
    cost = RecordCost(50.0)
    assert cost.tokens(TopicBacklog(10, None, None, 0.0)) == Tokens(10, 500, 500)
    assert cost.tokens(TopicBacklog(10, 300, 40, 0.0)) == Tokens(10, 300, 40)
    again = RecordCost(50.0)
    again.recall(cost.remembers())
    assert again.tokens(TopicBacklog(20, None, None, 0.0)) == Tokens(20, 600, 80)


def test_count_is_valid_for_a_while_and_ages() -> None:
    queue = TopicQueue(50.0)
    assert queue.waits(0.0) is None
    queue.observe(TopicBacklog(10, 300, 40, age_s=10.0), 100.0)
    assert queue.waits(90.0 + COUNTED_S) == Tokens(10, 300, 40)
    assert queue.waits(90.1 + COUNTED_S) is None
    queue.observe(TopicBacklog(0, 0, 0, 0.0), 200.0)
    assert queue.waits(200.0) == Tokens()


def counted(standing: StandingRecords, waits: list[tuple[float, float]], *, idle: bool = True) -> list[float]:
    return [
        standing.take_off(Tokens(records, 2 * records, records), now_s, idle=idle).requests
        for now_s, records in waits
    ]


def test_transaction_markers_keep_no_replica_and_hide_no_record() -> None:
    standing = StandingRecords()
    assert counted(standing, [(0, 4), (STANDS_S - 1, 4), (STANDS_S, 4), (900, 4)]) == [4, 4, 0, 0]
    # Three records come, and the end of their transaction; all are read but the last end.
    assert counted(standing, [(901, 8)]) == [4]
    assert counted(standing, [(902, 6)], idle=False) == [2]
    assert counted(standing, [(903, 4), (2000, 4)]) == [0, 0]


def test_source_that_resumes_after_a_hang_has_records() -> None:
    standing = StandingRecords()
    assert counted(standing, [(0, 10**6), (STANDS_S, 10**6)]) == [10**6, 0]
    assert counted(standing, [(70, 10**6 - 500)]) == [10**6 - 500]


@given(st.lists(st.tuples(st.integers(0, 59), st.integers(0, 5)), max_size=40))
def test_backlog_of_a_busy_job_counts_in_full(steps: list[tuple[int, int]]) -> None:
    standing, now_s = StandingRecords(), 0.0
    for after_s, records in steps:
        now_s += after_s
        assert counted(standing, [(now_s, records)], idle=False) == [records]


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 5), st.booleans()), max_size=60))
def test_count_is_limited_to_existing_records_and_recent_changes(
    steps: list[tuple[int, int, bool]],
) -> None:
    standing, now_s, before = StandingRecords(), 0.0, 0
    for after_s, records, idle in steps:
        now_s += after_s
        waits = standing.take_off(Tokens(records, 10 * records, 0), now_s, idle=idle)
        assert 0 <= waits.requests <= records
        assert waits.prompt == pytest.approx(10 * waits.requests)
        if records > before:
            assert waits.requests >= records - before - 1e-9
        before = records
