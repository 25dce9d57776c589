"""The cost of a run by part: threads, figures, and a real run."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.cli.overhead import show_cost
from benchmarks.cost import PARTS, Cost, CostOptions, LoadCost, cost_document, measure_cost, part_of

from benchmarks import cost
from forebay.bench.resources import ProcessUse
from forebay.bench.stream import process


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("C2 CompilerThre", "jit"),
        ("C1 Comp..hread0", "jit"),
        ("VM Thread", "memory"),
        ("GC Thread#0", "memory"),
        ("G1 Conc#0", "memory"),
        ("Source: calls o", "source"),
        ("Source:..1/1)#0", "source"),
        ("Source Data Fet", "source"),
        ("kafka-coordinat", "source"),
        ("forebay-feed", "source"),
        ("infer -> (Map, ", "operator"),
        ("infer -..1/1)#0", "operator"),
        ("forebay-calls", "calls"),
        ("flink-pekko.act", "flink"),
        ("Time Trigger fo", "flink"),
    ],
)
def test_thread_name_determines_its_part(name: str, part: str) -> None:
    assert part_of(name) == part


def use(**threads: float) -> ProcessUse:
    named = {number: (name.replace("_", " "), s) for number, (name, s) in enumerate(threads.items())}
    return ProcessUse(sum(threads.values()) + 1.0, 100.0, named)


def look(**jvm: float) -> dict[str, ProcessUse]:
    return {"jvm": use(**jvm), **{name: use(main=1.0) for name in ("client", "command", "engine", "source")}}


def found(rate_per_s: float = 100.0, events: int = 1000) -> LoadCost:
    before = look(C2_CompilerThre=1.0, infer_=1.0, Timer=0.0)
    after = look(C2_CompilerThre=1.5, infer_=3.0, Timer=0.25)
    after["client"] = use(main=1.75)
    after["command"] = replace(use(main=1.25), memory_mb=50.0)
    after["engine"] = use(main=5.0)
    return cost._load_cost(rate_per_s, 10.0, events, before, after)


def test_usage_is_reported_by_part_and_per_event() -> None:
    load = found()
    none = dict.fromkeys(PARTS, 0.0)
    assert load.processor_s == {
        **none,
        "jit": 0.5,
        "operator": 2.0,
        "flink": 0.25,
        "client": 0.75,
        "command": 0.25,
    }
    assert load.outside_s == {"engine": 4.0, "source": 0.0}
    assert load.memory_mb == {"jvm": 100.0, "client": 100.0, "command": 50.0}
    assert load.threads["jvm"] == {"C2 CompilerThre": 0.5, "infer ": 2.0, "Timer": 0.25}
    assert (load.events_per_s, load.cores) == (100.0, 0.375)
    assert load.ms_per_event(3.75) == 3.75
    assert found(0.0, 0).ms_per_event(3.75) is None


def test_idle_load_starts_once_earlier_events_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [0, 41, 90, 90, 90]
    checks: list[str] = []

    monkeypatch.setattr(cost, "REST_S", 0.0)
    monkeypatch.setattr(cost, "answers", lambda replica: counts.pop(0))
    cost.await_rest(None, lambda: checks.append("check"))  # type: ignore[arg-type]
    assert (counts, len(checks)) == ([90], 3)


@pytest.mark.long
@pytest.mark.flink
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_a_run_is_measured(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    monkeypatch.setattr(process, "ARCHIVE_S", 0.0)
    text: list[str] = []
    whole = measure_cost(CostOptions(2.0, 2.0, 0.5, (0.0, 50.0)), text.append)
    idle, busy = whole.loads
    assert (idle.events, busy.events > 0) == (0, True)
    assert whole.first_request_s > 0
    # The client may do next to nothing in two seconds.
    for part in ("operator", "calls", "source", "flink"):
        assert busy.processor_s[part] > 0, part
    assert busy.outside_s["engine"] > 0
    assert min(busy.memory_mb.values()) > 10
    assert "forebay-calls" in busy.threads["jvm"]
    assert text[0] == "starting the run"


def test_document_and_table_agree(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Cost("A processor", 2, 5.25, (found(0.0, 0), found(), found(math.inf, 20_000)))
    document = cost_document(whole)
    json.dumps(document, allow_nan=False)
    assert [load["rate_per_s"] for load in document["loads"]] == [0.0, 100.0, None]
    assert [load["ms_per_event"] for load in document["loads"]] == [None, 3.75, 0.1875]
    assert [load["events_per_s"] for load in document["loads"]] == [0.0, 100.0, 2000.0]
    assert [load["cores"] for load in document["loads"]] == [0.375] * 3
    monkeypatch.setenv("COLUMNS", "120")
    show_cost(whole)
    shown = capsys.readouterr().out
    lines = {line.split("  ")[0].strip(): line.split() for line in shown.splitlines()}
    assert lines["all of Forebay"][-5:] == ["37.50%", "3.75", "ms", "0.19", "ms"]
    assert lines["operator"][-5:] == ["20.00%", "2.00", "ms", "0.10", "ms"]
    assert lines["outside: scripted engine"][-3:-1] == ["ms", "0.20"]
    assert lines["memory: all"][-2:] == ["250", "MB"]
    assert "5.2 s" in shown
