"""Tables of measurements, and merging of documents."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.peers.feed import Seen
from benchmarks.peers.peers import PEERS
from benchmarks.peers.run import Load, Observed, Use
from benchmarks.peers.tables import merged, table_of

from benchmarks.peers import tables
from forebay.errors import SettingError
from forebay.testing.script import CallReport

DOCUMENT: dict[str, Any] = {
    "provenance": {"command": "first"},
    "quick": True,
    "peers": {
        "forebay": {"title": "Forebay"},
        "slow": {"title": "Slow"},
        "broken": {"title": "Broken"},
        "absent": {"title": "Absent", "skipped": "no wheel\nfor this | Python"},
    },
    "parts": {
        "latency": {
            "rate_per_s": 100,
            "seconds": 20,
            "peers": {
                "forebay": {
                    "rate_per_s": 100.04,
                    "added_ms_p50": 1.4,
                    "added_ms_p99": 9.6,
                    "unanswered": 0,
                    "checkpoint_ms_p50": 20,
                    "processor_ms_per_event": 2.04,
                    "memory_mb": 1500,
                },
                "slow": {
                    "rate_per_s": 3.0,
                    "added_ms_p50": 9000.0,
                    "added_ms_p99": 36_000.0,
                    "unanswered": 7,
                },
                "broken": {"failed": "gave no result"},
            },
        }
    },
}


def test_later_document_wins_and_nothing_is_dropped() -> None:
    later = deepcopy(DOCUMENT)
    later["provenance"] = {"command": "second"}
    later["peers"] = {"slow": {"title": "Slow"}}
    later["parts"]["latency"]["peers"] = {"slow": {"rate_per_s": 5.0}}
    later["parts"]["kill"] = {"rate_per_s": 50, "seconds": 8, "peers": {"slow": {"lost": 0}}}
    titles = {"slow": "Slow", "new": "New", "forebay": "Forebay", "broken": "Broken", "absent": "Absent"}
    found = merged([DOCUMENT, later], titles)
    assert list(found["peers"]) == list(titles)
    assert table_of("latency", found).reasons["New"] == "not measured in the recorded runs"
    assert found["parts"]["latency"]["peers"]["slow"] == {"rate_per_s": 5.0}
    assert found["parts"]["latency"]["peers"]["forebay"]["added_ms_p50"] == 1.4
    assert found["parts"]["kill"]["peers"] == {"slow": {"lost": 0}}
    assert found["runs"] == [{"command": "first"}, {"command": "second"}]
    assert merged([found], titles) == found
    assert DOCUMENT["parts"]["latency"]["peers"]["slow"]["rate_per_s"] == 3.0


def test_different_loads_are_not_put_into_one_table() -> None:
    other = deepcopy(DOCUMENT)
    other["parts"]["latency"]["seconds"] = 45
    with pytest.raises(SettingError, match="latency was measured with different loads"):
        merged([DOCUMENT, other], {"forebay": "Forebay"})
    with pytest.raises(SettingError, match="not written by this command"):
        merged([{"parts": {}}], {})


LOAD = Load(10, 10, warm_s=2)
START_S = 1000.0


def seen(
    added_s: float = 0.5, committed_s: float = 1.5, *, without: tuple[int, ...] = (), load: Load = LOAD
) -> Observed:
    def results(after_s: float) -> tuple[Seen, ...]:
        return tuple(
            Seen(index, START_S + index / load.rate_per_s + after_s, True)
            for index in range(load.events)
            if index not in without
        )

    return Observed(
        start_s=START_S,
        end_s=START_S + 10,
        late_s=0.001,
        written=results(added_s),
        committed=results(committed_s),
        use=tuple(Use(START_S + second, 5 + second * 0.2, 100 + second) for second in range(11)),
        checkpoints_ms=(30, 10, 20),
        ready_s=3.0,
    )


def test_added_time_excludes_engine_time_and_warm_up() -> None:
    found = tables.latency(LOAD, seen(), lambda index: 0.1 if index else 99.0)
    assert (found["added_ms_p50"], found["added_ms_p90"]) == (pytest.approx(400), pytest.approx(400))
    assert found["added_ms_committed_p50"] == pytest.approx(1400)
    assert found["rate_per_s"] == pytest.approx(10, abs=0.1)
    assert (found["checkpoint_ms_p50"], found["checkpoints"], found["unanswered"]) == (20, 3, 0)
    # 1.6 s of the processor for 80 events, from the second to the tenth second.
    assert found["processor_ms_per_event"] == pytest.approx(20, abs=0.3)
    assert found["memory_mb"] == 110


def test_an_event_without_a_result_counts_as_long_as_it_was_waited_for() -> None:
    late = tuple(range(20, 100, 2))
    found = tables.latency(LOAD, seen(without=late), lambda _: 0.0)
    assert found["unanswered"] == 40
    # Event 20 was due in the second second, and the last look was in the tenth.
    assert found["added_ms"][99] == pytest.approx((8.4) * 1000, abs=201)
    assert found["rate_per_s"] == pytest.approx(5, abs=0.3)


def test_lost_given_up_and_doubled() -> None:
    once = seen(without=(3, 4))
    twice = (*once.committed, once.committed[0], replace(once.committed[-1], index=4, answered=False))
    found = tables.common(LOAD, replace(once, committed=twice, ended="ended with status 1"))
    assert (found["lost"], found["given_up"], found["doubled"], found["answered"]) == (1, 1, 1, 98)
    assert found["ended"] == "ended with status 1"


LONG = Load(125, 10, warm_s=2)


def test_fewer_than_a_thousand_events_have_no_99th_percentile() -> None:
    found = tables.latency(LONG, seen(load=LONG), lambda _: 0.0)
    assert (found["added_ms_p99"], found["added_ms_committed_p99"]) == (
        pytest.approx(500),
        pytest.approx(1500),
    )
    shorter = replace(LONG, seconds=9.99)
    assert "added_ms_p99" not in tables.latency(shorter, seen(load=shorter), lambda _: 0.0)


def test_an_event_that_was_given_up_and_then_answered_is_answered() -> None:
    once = seen()
    found = tables.common(LOAD, replace(once, committed=(Seen(0, START_S, False), *once.committed)))
    assert (found["answered"], found["given_up"], found["doubled"]) == (100, 0, 1)


def test_calls_count_tries_of_events_alone() -> None:
    report = CallReport({"event-0": 3, "event-1": 1, "warm-0": 7}, 0, 9, 4, 0)
    assert tables.calls(report) == {"calls": 4, "called_again": 2, "max_in_flight": 9}


def test_time_until_everything_due_had_its_result() -> None:
    assert tables.caught_up_s(LOAD, seen(), 5.0) == pytest.approx(0.4)
    assert tables.caught_up_s(LOAD, seen(added_s=0.0), 5.0) == 0.0
    assert tables.caught_up_s(LOAD, seen(without=(7,)), 5.0) is None


def test_empty_run_is_not_an_error() -> None:
    none = replace(seen(without=tuple(range(100))), use=(), checkpoints_ms=None)
    found = {**tables.common(LOAD, none), **tables.latency(LOAD, none, lambda _: 0.0)}
    assert (found["lost"], found["rate_per_s"], found["unanswered"]) == (100, 0.0, 80)
    assert "memory_mb" not in found
    assert "checkpoint_ms_p50" not in found


def test_figures_of_events_without_an_engine_call_are_in_brackets() -> None:
    document = deepcopy(DOCUMENT)
    found = document["parts"]["latency"]["peers"]["forebay"]
    found |= {"calls": 2006, "called_again": 1218, "answered": 2000}
    table = table_of("latency", document)
    assert table.rows[0][:3] == ("Forebay", "(100.0)", "(1 ms)")
    assert table.reasons["Forebay"] == "INVALID: 2,000 events have an answer, the engine was asked about 788"
    found["called_again"] = 6
    assert "Forebay" not in table_of("latency", document).reasons


RESULTS = Path(__file__).parents[3] / "docs" / "results"


def test_every_peer_is_in_the_recorded_document() -> None:
    document = orjson.loads((RESULTS / "peers.json").read_bytes())
    assert set(document["peers"]) == {peer.name for peer in PEERS}
