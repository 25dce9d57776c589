"""A peer under load: a small script, and PyFlink's AsyncFunction."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.base import ID_IN_PROMPT, Peer
from benchmarks.peers.peers import peers_named
from benchmarks.peers.run import Load, Observed, Place, durations_ms, observe

from benchmarks.peers import tables
from forebay.settings import load_settings
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

PROGRAM = Path(__file__).with_name("fake_program.py")
LOAD = Load(20, 2, drain_s=30)


@pytest.fixture(scope="module")
def engine() -> Iterator[ReplicaProcess]:
    with ReplicaProcess(ReplicaScript(delay=Fixed(0.002), id_in_prompt=ID_IN_PROMPT)) as replica:
        yield replica


def run(peer: Peer, load: Load, node: Any, engine: ReplicaProcess, work: Path) -> Observed:
    work.mkdir()
    settings = load_settings()
    place = Place(Path(sys.executable), node.bootstrap, engine.url, "fake", work, settings, dict(os.environ))
    return observe(peer, load, place)


def fake(**options: Any) -> Peer:
    return Peer("fake", "Fake", str(PROGRAM), docs="none", options=options)


def test_every_answered_event_is_seen_once(node: Any, engine: ReplicaProcess, tmp_path: Path) -> None:
    peer = fake(skips=["event-39"], gives_up=["event-5"])
    load = Load(20, 2, drain_s=2)
    seen = run(peer, load, node, engine, tmp_path / "work")
    found = tables.common(load, seen)
    assert (found["answered"], found["lost"], found["given_up"], found["doubled"]) == (38, 1, 1, 0)
    assert sorted(one.index for one in seen.written) == list(range(39))
    assert all(one.at_s >= seen.start_s + one.index / load.rate_per_s for one in seen.written)
    assert seen.use[-1].memory_mb > 5


@pytest.mark.long
def test_duplicates_of_a_restart_are_counted(node: Any, engine: ReplicaProcess, tmp_path: Path) -> None:
    load = Load(20, 3, kill_at_s=1.5, drain_s=30)
    seen = run(fake(), load, node, engine, tmp_path / "work")
    found = tables.common(load, seen)
    assert found["lost"] == 0
    # It commits no offsets, so what it had answered before the kill comes again.
    assert found["doubled"] >= 10
    assert seen.back_s is not None


def test_ended_peer_is_in_the_figures(node: Any, engine: ReplicaProcess, tmp_path: Path) -> None:
    seen = run(fake(ends_at="event-20"), LOAD, node, engine, tmp_path / "work")
    assert seen.ended is not None
    assert "status 1: this peer gave up" in seen.ended
    assert tables.common(LOAD, seen)["lost"] == 20


def test_checkpoints_that_are_complete_and_were_begun_after_the_warm_up() -> None:
    history = [
        {"status": "COMPLETED", "trigger_timestamp": 9_999, "end_to_end_duration": 500},
        {"status": "COMPLETED", "trigger_timestamp": 10_000, "end_to_end_duration": 20},
        {"status": "IN_PROGRESS", "trigger_timestamp": 11_000, "end_to_end_duration": 3},
        {"status": "COMPLETED", "trigger_timestamp": 11_000, "end_to_end_duration": 30},
    ]
    assert durations_ms(history, 10.0) == (20, 30)


@pytest.mark.long
@pytest.mark.flink
def test_async_function_answers_all_over_a_kill(
    node: Any, engine: ReplicaProcess, kafka_jar: Path, tmp_path: Path
) -> None:
    (peer,) = peers_named(["async_function"])
    load = Load(20, 6, kill_at_s=3, drain_s=90)
    seen = run(peer, load, node, engine, tmp_path / "work")
    found = tables.common(load, seen)
    assert (found["lost"], found["doubled"], found["given_up"]) == (0, 0, 0)
    assert seen.checkpoints_ms


@pytest.mark.long
@pytest.mark.flink
def test_async_scalar_function_with_copied_rows_calls_for_every_event(
    node: Any, kafka_jar: Path, tmp_path: Path
) -> None:
    (peer,) = peers_named(["async_scalar_function_mended"])
    load = Load(100, 3, drain_s=60)
    with ReplicaProcess(ReplicaScript(delay=Fixed(0.002), id_in_prompt=ID_IN_PROMPT)) as engine:
        seen = run(peer, load, node, engine, tmp_path / "work")
        asked = {id for id in engine.report().calls if id.startswith("event-")}
    assert tables.common(load, seen)["lost"] == 0
    assert asked == {f"event-{index}" for index in range(load.events)}
