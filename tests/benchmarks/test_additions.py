from __future__ import annotations

import os
from contextlib import closing
from typing import Any
from urllib.request import Request, urlopen

import pytest
from benchmarks.additions import (
    WITH,
    WITHOUT,
    AdditionOptions,
    addition_report,
    collector,
    measure_traces,
    open_page,
    page_address,
)

from benchmarks import additions
from forebay.errors import LaunchError
from forebay.pipeline.live.server import PageServer
from forebay.testing.waiting import wait_until


def test_collector_takes_one_message_after_another() -> None:
    with collector() as spans:
        for body in (b"", b"x" * 100_000):
            with urlopen(Request(f"{spans.url}/v1/traces", body), timeout=60) as answer:
                assert answer.status == 200


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/metrics", None])
def test_a_run_without_traces_is_no_measurement(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = {
        "OTEL_SDK_DISABLED": "true",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1",
    }
    for name, value in inherited.items():
        monkeypatch.setenv(name, value)

    def measure(*_: object) -> dict[str, Any]:
        assert not inherited.keys() & os.environ.keys()
        assert os.environ["HOME"]
        if path is not None:
            url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + path
            urlopen(Request(url, b"x"), timeout=60).close()
        return {"measured": 1}

    monkeypatch.setattr(additions, "_measure", measure)
    if path == "/v1/traces":
        assert measure_traces(AdditionOptions()) == {"measured": 1}
    else:
        with pytest.raises(LaunchError, match="has sent none"):
            measure_traces(AdditionOptions())
    assert inherited.items() <= os.environ.items()
    assert "OTEL_TRACES_SAMPLER" not in os.environ


def test_a_turn_without_answers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Still:
        """A feed and a run that do nothing."""

        def pace(self, rate_per_s: float) -> None:
            pass

        def check(self) -> None:
            pass

        def processes(self) -> dict[str, int]:
            return {additions.COMMAND: os.getpid()}

        def output(self) -> str:
            return "it waits"

    still: Any = Still()
    monkeypatch.setattr(additions, "answers", lambda _: 7)
    options = AdditionOptions(seconds=0.0, settle_s=0.0)
    with pytest.raises(LaunchError, match="gave no answer in a turn of 0 s: it waits"):
        additions._turn(still, still, still, options)


def test_runs_are_compared_in_each_round() -> None:
    def turns(*rates: float) -> list[dict[str, float]]:
        return [{"answers_per_s": rate, "ms_per_answer": 1.0, "command_cores": 0.1} for rate in rates]

    report = addition_report({WITHOUT: turns(100, 200, 300), WITH: turns(99, 210, 270)})
    assert report["answers_per_s_ratios"] == [0.99, 1.05, 0.9]
    assert report["answers_per_s_ratio"] == 0.99
    assert report[WITH]["answers_per_s"] == 210


def test_page_address_is_found_in_the_output() -> None:
    text = "warning: x\nwatch this run at http://127.0.0.1:5/secret/\n    1 s running"
    assert page_address(text) == "http://127.0.0.1:5/secret/"
    with pytest.raises(LaunchError, match="the run has no page: nothing"):
        page_address("nothing")


def test_an_open_page_is_read_part_by_part() -> None:
    class Parts:
        def __init__(self) -> None:
            self.version = 0
            self.asked: list[str] = []

        def page(self) -> str:
            return "page"

        def versions(self) -> dict[str, int]:
            return {"numbers": self.version, "charts": 1}

        def part(self, name: str, search: str) -> str:
            self.asked.append(name)
            return name

    parts = Parts()
    with closing(PageServer(parts)) as server:
        server.start()
        with open_page(server.url):
            wait_until(lambda: len(parts.asked) == 2)
            parts.version = 1
            wait_until(lambda: len(parts.asked) == 3)
        server.close()
    assert sorted(parts.asked) == ["charts", "numbers", "numbers"]
