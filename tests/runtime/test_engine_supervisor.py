"""Replicas that a run started are started again when they die; those of others are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.engine.launch import Registry, Replicas
from forebay.engine.launch.spec import Launch
from forebay.errors import PipelineFailed
from forebay.runtime.engine_supervisor import MAX_RESTARTS, WITHIN_S, EngineSupervisor, SupervisedEngine
from forebay.testing.clock import ManualClock

MakeOwned = Callable[..., Any]


def no_launch(port: int, cores: tuple[int, ...]) -> Launch:
    raise AssertionError("nothing is to be started")


def test_the_replicas_that_forebay_starts_are_owned_and_urls_are_not(tmp_path: Path) -> None:
    with Replicas(Registry(tmp_path / "replicas.json"), no_launch, model="m") as replicas:
        assert isinstance(replicas, SupervisedEngine)
        EngineSupervisor(replicas).mend()
    assert not isinstance(["http://somewhere"], SupervisedEngine)
    EngineSupervisor(["http://somewhere"]).mend()


def test_a_dead_replica_is_told_of_and_started_again(make_owned: MakeOwned) -> None:
    owned, said = make_owned(2), list[str]()
    keeper = EngineSupervisor(owned, ManualClock())
    keeper.mend(said.append)
    assert (owned.restarted, said) == ([], [])
    owned.die(1)
    keeper.mend(said.append)
    keeper.mend(said.append)
    assert owned.restarted == [1]
    assert said == ["the local engine at http://r:1 ended and is started again; its log was the.log"]


def test_one_that_cannot_be_started_again_ends_the_run(make_owned: MakeOwned) -> None:
    owned = make_owned()
    owned.die()
    owned.broken = True
    with pytest.raises(PipelineFailed, match="ended and cannot be started again: no memory"):
        EngineSupervisor(owned, ManualClock()).mend()


def test_one_that_keeps_dying_ends_the_run_but_not_one_that_dies_now_and_then(
    make_owned: MakeOwned,
) -> None:
    owned, clock = make_owned(), ManualClock()
    keeper = EngineSupervisor(owned, clock)
    for _ in range(2 * MAX_RESTARTS):
        owned.die()
        keeper.mend()
        clock.advance(WITHIN_S / MAX_RESTARTS)
    assert len(owned.restarted) == 2 * MAX_RESTARTS
    clock.advance(WITHIN_S)
    for _ in range(MAX_RESTARTS):
        owned.die()
        keeper.mend()
        clock.advance(WITHIN_S / MAX_RESTARTS - 1)
    owned.die()
    with pytest.raises(PipelineFailed, match=r"ended 4 times within 10 minutes; its log is the\.log"):
        keeper.mend()
