"""What a program's log says of its job."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

import forebay as fb
from forebay.api.progress import Counts, follow, lines, rest_of
from forebay.errors import LaunchError, SettingError
from forebay.flink.environment import FlinkConfig

COUNTS = {
    "accepted": 40.0,
    "restored": 2.0,
    "results": 30.0,
    "dead_letters": 1.0,
    "in_flight": 8.0,
    "pending": 3.0,
}
LINE = "sort: 42 events in, 30 results, 1 dead letters, 8 in flight, 3 waiting"


def looks(*found: Counts | None) -> tuple[Callable[[], Counts], Callable[[], bool]]:
    """A job that is looked at once for each of `found`; None: Flink does not answer."""
    left = list(found)

    def look() -> Counts:
        now = left.pop(0)
        if now is None:
            raise LaunchError("Flink does not answer")
        return now

    return look, lambda: not left


def said(caplog: pytest.LogCaptureFixture, *found: Counts | None) -> list[str]:
    caplog.set_level(logging.INFO, "forebay")
    follow(*looks(*found))
    return [record.getMessage() for record in caplog.records if record.name == "forebay"]


def test_a_line_for_each_operator_that_had_an_event() -> None:
    found = {
        "sort": COUNTS,
        "again": {"accepted": 1.0},
        "idle": {"accepted": 0.0},
        "source": {"limit_reached": 1.0},
    }
    assert lines(found) == ["again: 1 events in, 0 results, 0 dead letters, 0 in flight, 0 waiting", LINE]


def test_nothing_is_said_twice_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    more = {**COUNTS, "results": 31.0}
    assert said(caplog, {}, {"sort": COUNTS}, {"sort": COUNTS}, {"sort": more}, {"sort": COUNTS}) == [
        LINE,
        LINE.replace("30 results", "31 results"),
        LINE,
    ]


def test_a_flink_that_does_not_answer_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, None, {"sort": COUNTS}, None, {"sort": COUNTS}) == [LINE]


def test_a_cluster_is_asked_where_it_is() -> None:
    rest = rest_of(None, FlinkConfig(cluster="flink:8081"))
    assert rest is not None
    assert rest.url == "http://flink:8081"


@pytest.mark.parametrize("every_s", [0, -1.0, float("nan")])
def test_an_interval_that_is_none(every_s: float) -> None:
    with pytest.raises(SettingError, match="log_every_s: expected a number of seconds above 0, or None"):
        fb.environment(log_every_s=every_s)
