"""Start positions of a source, new partitions and topics at run time, and event time with idle partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flink
DAY_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def scenes(
    node: Any, kafka_jar: Path, flink_logs: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    from .scenes import read_in_scenes

    return read_in_scenes(node.bootstrap, tmp_path_factory.mktemp("scenes"), flink_logs)


@pytest.mark.parametrize(
    ("start", "texts"),
    [
        ("time", ["e2", "e3"]),
        ("earliest", ["e0", "e1", "e2", "e3"]),
        ("nothing committed", ["e0", "e1", "e2", "e3"]),
        ("committed", ["e3"]),
    ],
)
def test_source_starts_at_the_configured_position(
    scenes: dict[str, Any], start: str, texts: list[str]
) -> None:
    assert [line["text"] for line in scenes[start]] == texts


def test_from_latest_only_new_records_are_read(scenes: dict[str, Any]) -> None:
    assert {line["text"] for line in scenes["latest"]} == {"new"}


def test_a_new_topic_that_matches_and_a_new_partition_are_found(scenes: dict[str, Any]) -> None:
    assert [line["text"] for line in scenes["discovery"]] == ["first", "new topic", "new partition"]


def test_idle_partitions_do_not_hold_event_time_back(scenes: dict[str, Any]) -> None:
    assert [line["time_ms"] for line in scenes["idle"]] == [DAY_MS, DAY_MS + 10_000]
