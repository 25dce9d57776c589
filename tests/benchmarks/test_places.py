"""Inputs and sinks of a recovery run."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from benchmarks.places import Behind, FilesPlace, place
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.settings import Settings


def line(number: int) -> bytes:
    return orjson.dumps({"fields": {"n": number}})


def test_offsets_behind_results_are_right() -> None:
    behind = Behind(2)
    for number in (0, 2, 1):
        behind.answered(line(number))
    behind.committed([2, 1])
    assert behind.worst == 0


def test_worst_lag_is_kept() -> None:
    behind = Behind(2)
    behind.answered(line(2))
    behind.committed([2, 1])
    assert behind.worst == 2  # Events 0 and 1 have no result yet.
    behind.answered(line(0))
    behind.answered(line(1))
    behind.committed([2, 1])
    assert behind.worst == 2


@given(
    st.lists(st.one_of(st.integers(0, 15), st.tuples(*[st.integers(0, 5)] * 3)), max_size=30),
)
def test_incremental_count_equals_a_full_count(script: list[int | tuple[int, ...]]) -> None:
    behind, answered, worst = Behind(3), set[int](), 0
    for step in script:
        if isinstance(step, int):
            behind.answered(line(step))
            answered.add(step)
        else:
            behind.committed(step)
            missing = sum(p + 3 * at not in answered for p, offset in enumerate(step) for at in range(offset))
            worst = max(worst, missing)
    assert behind.worst == worst


def test_events_are_numbered_lines(tmp_path: Path) -> None:
    FilesPlace(tmp_path).prepare([{"n": n} for n in range(3)])
    assert (tmp_path / "events.jsonl").read_bytes() == b'{"n":0}\n{"n":1}\n{"n":2}\n'


def test_a_kafka_to_kill_must_be_named(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, python=Path())
    with pytest.raises(SettingError, match="FOREBAY_KAFKA_HOME"), place("kafka", tmp_path, settings):
        pass
