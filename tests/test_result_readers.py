from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.apps.summaries.test_page import SUMMARY

from forebay.apps.summaries.page import summaries_page
from forebay.apps.topics.page import read_topics
from forebay.apps.trends.page import read_trends
from forebay.bench.stream.book import read_letter, read_result
from forebay.bench.stream.result_book import read_sink_result
from forebay.cli.demo.plan import DemoOptions, plan_demo, summarize
from forebay.connectors.formats import Format, dead_letter_json, result_json
from forebay.records import DeadLetter, Event, Result, Usage


def fields() -> Any:
    event = Format().read(b'{"gold_topic": "food", "wide": 1e400, "long": 123456789012345678901234567890}')
    assert isinstance(event, Event)
    return event.fields


def line(answer: Any, **more: Any) -> bytes:
    result = Result("i", "k", fields(), answer, Usage(3, 2), 1, 0, 0.1, 0.1, **more)
    return result_json(result).encode()


TREND = {
    "kind": "born", "trend": 0, "name": "storm", "terms": ["storm"], "time_ms": 1, "onset_ms": 1,
    "peak_ms": 1, "rate_per_s": 2.5, "base_per_s": 0.1, "into": None, "texts": [],
}  # fmt: skip
TOPIC = {"kind": "born", "topic": "0", "size": 8, "into": None, "score": 0.0, "texts": [], "time_ms": 1}
READERS: dict[str, Callable[[], object]] = {
    "summaries": lambda: "Reinstalling helped." in summaries_page([line(SUMMARY.to_json())]),
    "trends": lambda: read_trends([line(TREND)]),
    "topics": lambda: read_topics([line(TOPIC)]),
    "benchmark": lambda: read_result(line("a"), 0).usage == (3, 2, 0),
    "benchmark of an application": lambda: read_sink_result(
        line({"kind": "why"}, position="p", time_ms=1), 0, ("why",)
    ),
    "dead letters": lambda: (
        read_letter(
            dead_letter_json(DeadLetter(b'{"event": "e", "wide": 1e400}', "late", "")).encode(), 0, "event"
        ).id
        == "e"
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_result_with_a_number_that_no_float_holds_is_read(reader: str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(line("a"))
    assert READERS[reader]()


def test_a_demo_counts_results_with_such_numbers(tmp_path: Path) -> None:
    demo = plan_demo(DemoOptions(out=tmp_path / "demo"))
    folder = tmp_path / "demo" / "results"
    folder.mkdir(parents=True)
    answer = {"sentiment": "neutral", "topic": "food"}
    (folder / "part-x-0.jsonl").write_bytes(line(answer, time_ms=1) + b"\n")
    assert summarize(demo).results == 1
