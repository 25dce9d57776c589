"""The measured command, and its end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from forebay.bench.stream.process import RunProcess


def test_a_second_ctrl_c_while_it_stops_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunProcess(tmp_path / "none.yaml", (), tmp_path)
    monkeypatch.setattr(run, "_command", ["sh", "-c", "trap '' INT; sleep 600 & wait"])
    run.start()
    process, waits = psutil.Process(run.pid), []
    wait = subprocess.Popen.wait

    def interrupted(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waits.append(timeout)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return wait(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.stop()
    assert not process.is_running()


def test_a_command_that_has_ended_may_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunProcess(tmp_path / "none.yaml", (), tmp_path)
    monkeypatch.setattr(run, "_command", ["true"])
    run.start()
    psutil.Process(run.pid).wait()
    run.kill_command()
