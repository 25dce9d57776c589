"""Runs with separate task managers: which parts are killed, and the effect."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from forebay.connectors.files.sink import read_jsonl_sink
from forebay.processes import wait_gone
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

pytestmark = [pytest.mark.flink, pytest.mark.slow]
COUNT = 2000


class Run:
    """A run of 2,000 events in two task managers, in its own processes."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        document = {
            "name": "p",
            "source": {"type": "generator", "rate": 100.0, "count": COUNT},
            "prompt": "{{ text }}",
            "sink": {"type": "jsonl", "path": "out"},
            "parallelism": 2,
            "task_managers": 2,
            "checkpoint": {"interval_s": 0.5},
        }
        (folder / "p.yaml").write_text(json.dumps(document))
        self._words = ("run", str(folder / "p.yaml"), "--engine", url, "--json")
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay", *self._words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        return self.process

    def everything(self) -> list[psutil.Process]:
        command = psutil.Process(self.process.pid)
        return [command, *command.children(recursive=True)]

    def task_managers(self) -> list[psutil.Process]:
        return self._java(lambda words: "-task-manager-" in words)

    def job_manager(self) -> psutil.Process:
        (found,) = self._java(lambda words: "-task-manager-" not in words and "GatewayServer" in words)
        return found

    def _java(self, wanted: Callable[[str], bool]) -> list[psutil.Process]:
        return [p for p in self.everything() if p.name() == "java" and wanted(" ".join(p.cmdline()))]

    def positions(self) -> list[str]:
        return [json.loads(line)["position"] for line in read_jsonl_sink(self.folder / "out")]

    def await_results(self, more: int) -> None:
        """Block until this many more results are committed."""
        enough = len(self.positions()) + more
        wait_until(
            lambda: self.process.poll() is not None or len(self.positions()) >= enough, timeout_s=120.0
        )
        assert self.process.poll() is None, self.process.communicate()[1].decode()

    def ended(self) -> tuple[int, Any, str]:
        """Return exit status, document, and output."""
        out, text = self.process.communicate(timeout=400)
        return self.process.returncode, json.loads(out) if out else None, text.decode()


@pytest.fixture
def run(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    with ReplicaThread(ReplicaScript(delay=Fixed(0.05))) as replica:
        run = Run(tmp_path, replica.url)
        try:
            yield run
        finally:
            run.process.kill()
            run.process.communicate()


@pytest.mark.long
def test_killing_any_part_loses_no_event_and_leaves_nothing(run: Run) -> None:
    run.await_results(20)
    first = run.task_managers()
    assert len(first) == 2
    first[0].kill()
    run.await_results(100)
    assert len(run.task_managers()) == 2
    run.job_manager().kill()
    run.await_results(100)
    assert not wait_gone(first, 10.0)
    everything = run.everything()
    run.process.kill()
    assert not wait_gone(everything, 60.0)
    run.ended()
    run.start()
    status, document, text = run.ended()
    assert status == 0, text
    assert (document["state"], document["dead_letters"]) == ("FINISHED", 0)
    assert sorted(run.positions()) == sorted(f"generator@{n}" for n in range(COUNT))


@pytest.mark.long
def test_stopped_run_leaves_nothing(run: Run) -> None:
    run.await_results(20)
    everything = run.everything()
    run.process.send_signal(signal.SIGTERM)
    status, document, text = run.ended()
    assert (status, document["state"]) == (143, "INTERRUPTED"), text
    assert not wait_gone(everything, 10.0)
