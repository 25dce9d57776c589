"""The page of measured pipelines."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from tests.bench.stream.stream_runs import even, event, lost, stream_run

from forebay.bench.records import EngineSample
from forebay.bench.report.html_stream import slow_and_usual, stream_page
from forebay.bench.stream.document import measured_stream
from forebay.bench.stream.events import EventSlo
from forebay.bench.stream.records import Killed, MeasuredCheckpoint, StreamRun


def made(**changes: object) -> StreamRun:
    return stream_run(
        [*even(200), lost(200, 20.0)],
        checkpoints=(
            MeasuredCheckpoint(1, 1.0, 0.02, 10, 10),
            MeasuredCheckpoint(2, 2.0, 9.0, 0, 0, completed=False),
        ),
        samples=(EngineSample(1.0, {"running": 2.0, "waiting": 0.0, "kv_cache_usage": 0.5}),),
        kills=(Killed("jvm", 5.0, 5.0),),
        provenance={"command": "forebay bench <script>"},
        **changes,
    )


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)


@pytest.mark.parametrize("runs", [1, 3, 30])
def test_the_page_has_all_parts_and_loads_nothing(runs: int) -> None:
    found = [measured_stream(made(), EventSlo(within_s=1.0)) for _ in range(runs)]
    page = stream_page(found, "goodput", ["7 events/s are sustained"])
    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.seen
    assert "src=" not in page
    assert "http:" not in page.replace("http://www.w3.org", "")
    for words in (
        "✕ INVALID",
        "jvm killed",
        "committed within 1 s",
        "queue and prefill",
        "7 events/s",
    ):
        assert words in page, words
    assert len(page) < 3_000_000


def test_a_run_without_events_has_a_page() -> None:
    assert "0 of 0" in stream_page([measured_stream(stream_run([]))], "stream")


def test_the_slowest_are_distinguished_from_the_usual() -> None:
    slow = (0.001, 0.002, 0.003, 0.01, 9.0, 0.2, 0.001, 0.5)
    run = stream_run([*even(90), *(event(n, n / 10, slow) for n in range(90, 100))])
    (_, usual), (_, slowest) = slow_and_usual(run)
    assert all(each.index < 90 for each in usual)
    assert sorted(each.index for each in slowest) == list(range(90, 100))
