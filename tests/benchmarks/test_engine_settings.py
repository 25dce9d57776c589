"""Settings of a local engine: their effects, and what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.engine_settings import (
    IN_FLIGHT,
    SETTINGS,
    launch_of,
    measure_settings,
    written_per_second,
)

from benchmarks import engine_settings
from forebay.engine.launch.progress import Silent
from forebay.engine.launch.spec import ReplicaSpec, vllm_launch
from forebay.settings import load_settings
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed


def test_a_setting_changes_what_it_says_and_nothing_else() -> None:
    base = vllm_launch(Path("python"), ReplicaSpec("m", "m"), port=1, cores=(0, 1), threads=2)
    assert launch_of(SETTINGS["local"], base) == base
    vllm = launch_of(SETTINGS["vllm"], base)
    assert vllm.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0,1"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in vllm.environment
    assert base.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert launch_of(SETTINGS["passive"], base).environment["OMP_WAIT_POLICY"] == "passive"
    assert launch_of(SETTINGS["spin-200"], base).environment["KMP_BLOCKTIME"] == "200"
    assert launch_of(SETTINGS["nice-10"], base).command == ("nice", "-n", "10", *base.command)


def test_what_was_begun_is_counted_whole_and_what_is_not_answered_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.05))) as replica:
        assert written_per_second(replica.url, "fake", 0.01) > IN_FLIGHT
    monkeypatch.setattr(engine_settings, "MAX_S", 0.2)
    with ReplicaThread(ReplicaScript(delay=Fixed(60.0))) as replica:
        assert written_per_second(replica.url, "fake", 0.1) == 0


@pytest.mark.long
@pytest.mark.vllm
def test_the_local_engine_is_measured() -> None:
    (found,) = measure_settings(["local"], load_settings(), seconds=1.0, progress=Silent())
    assert found.name == "local"
    assert min(found.idle_tokens_per_s, found.busy_tokens_per_s) > 0
