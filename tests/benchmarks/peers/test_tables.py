"""Tables of measurements, and merging of documents."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.peers.peers import PEERS
from benchmarks.peers.tables import merged, table_of

from forebay.errors import SettingError

RESULTS = Path(__file__).parents[3] / "docs" / "results"

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


def test_a_table_has_every_peer_with_its_figures_or_the_reason() -> None:
    table = table_of("latency", DOCUMENT)
    assert table.title == "95 % of calls 50 ms, 5 % 2 s; 100 events/s for 20 s"
    rows = {row[0]: dict(zip(table.heads, row, strict=True)) for row in table.rows}
    assert list(rows) == ["Forebay", "Slow", "Broken", "Absent"]
    forebay, slow = rows["Forebay"], rows["Slow"]
    assert (forebay["events/s"], forebay["added p50"], forebay["added p99"]) == ("100.0", "1 ms", "10 ms")
    assert (forebay["processor/event"], forebay["memory"]) == ("2.0 ms", "1,500 MB")
    # Some had no result: what is known is a lower bound.
    assert (slow["added p50"], slow["added p99"]) == ("≥ 9,000 ms", "≥ 36.0 s")
    assert slow["memory"] == "–"
    assert set(rows["Broken"].values()) == {"Broken", ""}
    assert table.reasons == {"Broken": "gave no result", "Absent": "no wheel\nfor this | Python"}


def test_figures_of_events_without_an_engine_call_are_in_brackets() -> None:
    document = deepcopy(DOCUMENT)
    found = document["parts"]["latency"]["peers"]["forebay"]
    found |= {"calls": 2006, "called_again": 1218, "answered": 2000}
    table = table_of("latency", document)
    assert table.rows[0][:3] == ("Forebay", "(100.0)", "(1 ms)")
    assert table.reasons["Forebay"] == "INVALID: 2,000 events have an answer, the engine was asked about 788"
    found["called_again"] = 6
    assert "Forebay" not in table_of("latency", document).reasons


def test_of_two_documents_the_later_counts_and_nothing_is_dropped() -> None:
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


def test_every_peer_is_in_the_recorded_document() -> None:
    document = orjson.loads((RESULTS / "peers.json").read_bytes())
    assert set(document["peers"]) == {peer.name for peer in PEERS}
