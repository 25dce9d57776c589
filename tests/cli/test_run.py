"""`forebay run` as a command: what is on its standard output, and how it ends when told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forebay.cli import application
from forebay.errors import SettingError
from forebay.testing.delays import Fixed
from forebay.testing.replica import ReplicaScript, ReplicaThread


@pytest.fixture
def replica() -> Iterator[ReplicaThread]:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as running:
        yield running


def pipeline(folder: Path, **document: Any) -> Path:
    usual = {
        "name": "p",
        "source": {"type": "generator", "count": 20, "paced": False},
        "prompt": "{{ text }}",
        "sink": {"type": "stdout"},
        "checkpoint": {"interval_s": 0.5},
    }
    file = folder / "p.yaml"
    file.write_text(json.dumps({**usual, **document}))
    return file


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "forebay", "run", *words],
        env={**os.environ, "FOREBAY_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_document_has_no_place_beside_results(tmp_path: Path) -> None:
    error = CliRunner().invoke(application(), ["run", str(pipeline(tmp_path)), "--json"]).exception
    assert isinstance(error, SettingError)
    assert str(error).startswith("--json: expected a sink of files or a topic, found stdout")


def test_who_stops_a_run_before_its_first_checkpoint_is_told_that_it_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forebay.pipelines.run.run_pipeline", stopped)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    ended = CliRunner().invoke(
        application(), ["run", str(pipeline(tmp_path)), "--engine", "http://127.0.0.1:1"]
    )
    assert "stopped; the same command starts over: there is no checkpoint yet" in ended.stderr


@pytest.mark.flink
def test_standard_output_has_the_results_and_nothing_else(tmp_path: Path, replica: ReplicaThread) -> None:
    out, said = start(tmp_path, str(pipeline(tmp_path)), "--engine", replica.url).communicate(timeout=400)
    lines = [json.loads(line) for line in out.splitlines()]
    assert len({line["position"] for line in lines}) == len(lines) == 20, said.decode()
    assert b"20 events in, 20 results, 0 dead letters" in said
    assert b"the dead letters: " in said
    # What Flink's libraries log though nothing is wrong.
    assert b"GCSFileSystem" not in said


@pytest.mark.flink
def test_a_run_ends_when_nobody_reads_its_results_any_more(tmp_path: Path, replica: ReplicaThread) -> None:
    endless = pipeline(tmp_path, source={"type": "generator", "rate": 50.0})
    running = start(tmp_path, str(endless), "--engine", replica.url)
    assert running.stdout is not None
    assert running.stderr is not None
    assert json.loads(running.stdout.readline())["id"]
    running.stdout.close()
    said = running.stderr.read().decode()
    assert running.wait(200) == 1, said
    assert "forebay: standard output was closed, and the job is cancelled" in said


@pytest.mark.flink
def test_sigterm_is_taken_as_ctrl_c_and_the_run_can_be_resumed(
    tmp_path: Path, replica: ReplicaThread
) -> None:
    endless = pipeline(
        tmp_path, source={"type": "generator", "rate": 50.0}, sink={"type": "jsonl", "path": "out"}
    )
    from forebay.connectors.sinks import read_jsonl_sink
    from forebay.operators.environment import newest_checkpoint
    from forebay.testing.waiting import wait_until

    home = tmp_path / ".forebay" / "p" / "checkpoints"
    resumed = None

    def own_checkpoint(running: subprocess.Popen[bytes], before: Path | None) -> bool:
        """Whether it has one, and what is older than the one that it resumed from is gone."""
        jobs = [path for path in home.glob("*") if path.is_dir()]
        return running.poll() is not None or (newest_checkpoint(home) != before and len(jobs) <= 2)

    for _ in range(3):
        running = start(tmp_path, str(endless), "--engine", replica.url)
        wait_until(partial(own_checkpoint, running, resumed))
        running.send_signal(signal.SIGTERM)
        out, said = running.communicate(timeout=400)
        assert running.returncode == 130, said.decode()
        assert out == b""
        assert b"stopped; the same command goes on from the newest checkpoint" in said
        resumed = newest_checkpoint(home)
        assert resumed is not None
        assert not json.loads((home / "run.json").read_text())["finished"]
    positions = [json.loads(line)["position"] for line in read_jsonl_sink(tmp_path / "out")]
    assert len(set(positions)) == len(positions) > 0
