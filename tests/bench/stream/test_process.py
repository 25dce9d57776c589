"""The measured command, and its end."""

from __future__ import annotations

import socket
import subprocess
from contextlib import closing
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import psutil
import pytest

from forebay.bench.stream.pipeline import read_pipeline
from forebay.bench.stream.process import Engines, RunProcess, check_listening
from forebay.errors import LaunchError, SettingError
from forebay.settings import load_settings


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


SPEC = read_pipeline(
    {
        "name": "p",
        "source": {"type": "generator"},
        "prompt": "{{ text }}",
        "sink": {"type": "jsonl", "path": "out"},
    },
    (),
)


def test_a_password_in_a_url_is_refused_at_once() -> None:
    with pytest.raises(SettingError, match=r"engine\.url"):
        Engines(SPEC, ("http://user:word@127.0.0.1:9",), load_settings()).__enter__()


def test_engine_in_this_process_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = iter(range(100))
    monkeypatch.setattr(
        "forebay.bench.stream.process.process_use", lambda pid: type("Use", (), {"processor_s": next(uses)})
    )
    with (
        HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server,
        Engines(SPEC, (f"http://127.0.0.1:{server.server_port}",), load_settings()) as engines,
    ):
        assert engines.processes
        engines.used_s()
        assert engines.used_s() == 0


def test_missing_engine_is_reported_before_the_start() -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        # Bound without listening, so that no other process gets the port.
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(LaunchError, match=r"no engine listens at 127\.0\.0\.1:.*--engine-later"):
            Engines(SPEC, (url,), load_settings()).__enter__()
        with Engines(SPEC, (url,), load_settings(), later=True) as engines:
            assert engines.urls == (url,)
        with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
            # One of several is enough.
            check_listening((url, f"http://127.0.0.1:{server.server_port}"))
