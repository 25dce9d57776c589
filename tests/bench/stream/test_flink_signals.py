"""Which job is sampled, and how often its record is read."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.bench.stream.flink_signals import RECORD_S, FlinkSignals
from forebay.errors import LaunchError
from forebay.flink.rest import NotFound
from forebay.pipeline.state_store import RunState

OLD, NEW = "a" * 32, "b" * 32


class Flink:
    """A record of one job, and a Flink that runs one; both without a network."""

    def __init__(self) -> None:
        self.job: str | None = OLD
        self.knows = OLD
        self.now_s = 1000.0
        self.reads = 0
        self.asked: list[str] = []
        keys: Any = None
        self.signals = FlinkSignals(self._read, keys, ask=lambda _: self._ask, now_s=lambda: self.now_s)

    def _read(self) -> RunState | None:
        self.reads += 1
        return RunState(job=self.job)

    def _ask(self, path: str) -> Any:
        job = path.split("/")[2]
        if job != self.knows:
            raise NotFound("404")
        self.asked.append(job)
        return {"history": [], "vertices": []}


def test_the_record_is_read_every_ten_seconds() -> None:
    flink = Flink()
    for _ in range(25):
        flink.signals()
        flink.now_s += 1.0
    assert flink.reads == 3
    assert set(flink.asked) == {OLD}


def test_a_job_unknown_to_flink_is_looked_up_at_the_next_sample() -> None:
    flink = Flink()
    flink.signals()
    flink.job = flink.knows = NEW
    with pytest.raises(LaunchError):
        flink.signals()
    flink.signals()
    assert flink.asked[-1] == NEW
    assert flink.reads == 2


def test_new_job_is_found_although_flink_lists_the_old_one() -> None:
    flink = Flink()
    flink.signals()
    flink.job = NEW
    flink.now_s += RECORD_S
    with pytest.raises(LaunchError):
        flink.signals()


def test_before_there_is_a_job_the_record_is_read_each_time() -> None:
    flink = Flink()
    flink.job = None
    assert flink.signals() == flink.signals() == {}
    assert flink.reads == 2
    flink.job = OLD
    flink.signals()
    assert flink.asked
