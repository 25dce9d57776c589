from __future__ import annotations

from contextlib import closing
from urllib.request import Request, urlopen

import pytest
from benchmarks.additions import (
    WITH,
    WITHOUT,
    addition_report,
    collector,
    open_page,
    page_address,
)

from forebay.errors import LaunchError
from forebay.pipeline.live.server import PageServer
from forebay.testing.waiting import wait_until


def test_collector_takes_one_message_after_another() -> None:
    with collector() as url:
        for body in (b"", b"x" * 100_000):
            with urlopen(Request(f"{url}/v1/traces", body), timeout=60) as answer:
                assert answer.status == 200


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
