"""Results of an application are counted by kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.harness.metric_group import Group

from forebay.apps.graph import CountKinds
from forebay.apps.trends import graph
from forebay.apps.trends.values import TrendSettings
from forebay.flink.event_time import Clocked
from forebay.flink.keying import TextField
from forebay.records import Result, Usage
from forebay.stateful.stream_time import Tolerance


def test_unusual_kinds_share_a_counter() -> None:
    def result_of(value: bytes) -> Result:
        return Result("1", "", {}, {"kind": value.decode()}, Usage(0, 0, 0), 1, 0, 0.0, 0.0)

    group = Group()
    context: Any = SimpleNamespace(get_metrics_group=lambda: group)
    counting = CountKinds(result_of)
    counting.open(context)
    for kind in (b"born", b"of my own", b"born", b"x" * 99):
        counting.map(kind)
    assert group.values() == {"findings_born": 2, "findings_other": 2}


def test_only_the_last_stage_of_trends_emits_results(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[Any] = []

    def staged(stream: Any, function: Any, **_: Any) -> Any:
        stages.append(function)
        return stream

    monkeypatch.setattr(graph, "check_environment", lambda _: None)
    monkeypatch.setattr(graph, "clocked", lambda *_, **__: Clocked(Mock(), Mock()))
    monkeypatch.setattr(graph, "staged", staged)
    tolerance = Tolerance()
    graph.trend_events(
        Mock(), TrendSettings(), TextField(), tolerance=tolerance, shards=2, parallelism=1, name="t"
    )
    assert [each._emits_results for each in stages] == [False, False, True]
