"""Results of an application are counted by kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.harness.metric_group import Group

from forebay.apps.graph import CountKinds
from forebay.records import Result, Usage


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
