"""More output of `forebay bench serve`: samples and provenance."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from forebay.cli import application
from forebay.errors import SettingError
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

LOAD = ["--protocol", "chat", "--requests", "4", "--concurrency", "2", "--output-tokens", "4"]


@pytest.mark.parametrize(
    "word", ["engine", "engine=", "engine=x", "=7", "a b=7", "engine=0", "engine=99999999999"]
)
def test_a_process_needs_a_name_and_a_number(word: str) -> None:
    words = ["bench", "serve", "http://127.0.0.1:9", "--process", word]
    error = CliRunner().invoke(application(), words).exception
    assert isinstance(error, SettingError)
    assert "--process: expected NAME=PID" in str(error)


def test_a_process_must_be_there() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    words = ["bench", "serve", "http://127.0.0.1:9", "--process", f"engine={ended.pid}"]
    error = CliRunner().invoke(application(), words).exception
    assert isinstance(error, SettingError)
    assert f"--process engine={ended.pid}: there is no such process" in str(error)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_the_report_has_samples_and_where_figures_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "the-key")
    file = tmp_path / "run.json"
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01), api_key="the-key")) as replica:
        words = ["bench", "serve", replica.url, *LOAD, "--api-key-env", "MY_KEY", "--json", str(file)]
        CliRunner().invoke(application(), [*words, "--process", f"client={os.getpid()}"])
    text = file.read_bytes()
    assert b"the-key" not in text
    (run,) = orjson.loads(text)["runs"]
    assert run["provenance"]["engine_version"] == "0.0.0+fake"
    assert run["provenance"]["machine"]["cores"] >= 1
    names = {name for sample in run["samples"] for name in sample["values"]}
    assert {"running", "waiting", "generation_tokens", "client_memory_mb"} <= names
