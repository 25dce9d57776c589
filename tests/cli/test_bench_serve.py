"""`forebay bench serve` from the command line."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from forebay.bench import serve
from forebay.bench.client import LoadProgress
from forebay.bench.report.document import MeasuredRun
from forebay.cli import application
from forebay.cli.bench_figures import run_progress
from forebay.errors import ForebayError, ModelNotFound, ProtocolViolation, SettingError, Unreachable
from forebay.testing.replica import ReplicaScript, ReplicaThread, fetch_work
from forebay.testing.script import Faults, Fixed
from forebay.testing.stream_server import ScriptedAnswer, StreamServer, completion
from forebay.testing.waiting import wait_until

SMALL = ["--prompt-tokens", "8", "--output-tokens", "4", "--requests", "20", "--concurrency", "4"]


def run(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(application(), ["bench", "serve", *words])
    if isinstance(result.exception, ForebayError):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture(autouse=True)
def nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine any request may be late."""
    monkeypatch.setattr("forebay.bench.verdict.MAX_LATE_S", 60.0)


@pytest.mark.heavy
def test_a_server_is_measured_and_everything_written(tmp_path: Path) -> None:
    report, records, page = tmp_path / "a.json", tmp_path / "a.jsonl", tmp_path / "a.html"
    with StreamServer(completion(4, 0.01, 0.001)) as server:
        output = run(
            server.url, *SMALL[:-2], "--concurrency", "1", "--concurrency", "4", "--slo-e2el-ms", "10000",
            "--prompt-tokens", "16", "--json", str(report), "--records", str(records), "--html", str(page),
        )  # fmt: skip
    assert [line.split()[:3] for line in output.splitlines() if "VALID" in line] == [
        ["concurrency", "1", "VALID"],
        ["concurrency", "4", "VALID"],
    ]
    assert "goodput" in output
    found = orjson.loads(report.read_bytes())
    assert [one["asked"]["schedule"]["concurrency"] for one in found["runs"]] == [1, 4]
    assert found["runs"][0]["provenance"]["model"] == "scripted"
    assert len(records.read_bytes().splitlines()) == 40
    assert page.read_text().lower().startswith("<!doctype html>")


@pytest.mark.heavy
def test_invalid_figures_end_with_status_1() -> None:
    """The server ends answers after half of the requested length, and some requests fail."""
    with StreamServer(completion(2, 0.0, 0.0)) as server:
        output = run(server.url, *SMALL, "--prompt-tokens", "16", status=1)
    assert "INVALID" in output
    assert "other lengths than asked for" in output
    script = ReplicaScript(delay=Fixed(0.0), faults=Faults((("503", 0.3),), seed=1))
    with ReplicaThread(script) as replica:
        output = run(replica.url, *SMALL, "--model", "fake", "--seed", "1", status=1)
    assert "× overloaded: " in output
    assert "of 20 requests answered" in output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rate", "0"], "--rate: expected requests per second"),
        (["--timeout", "0"], "--timeout: expected more than 0 seconds"),
        (["--timeout", "nan"], "--timeout"),
        (["--extra", "[1]"], "--extra: expected a JSON object"),
        (["--api-key-env", "NOT_THERE"], "--api-key-env: .*NOT_THERE"),
        (["--slo-ttft-ms", "0"], "--slo-ttft-ms: expected more than 0"),
        (["--records", "/none/a"], "--records: there is no folder"),
        (["--html", "/none/a"], "--html: there is no folder"),
        (["--json", "/none/a"], "--json: there is no folder"),
        (["--data", "/none"], "/none cannot be read"),
        (["--protocol", "triton"], "name the model"),
        (["--concurrency", "5", "--requests", "4"], "--concurrency 5: expected no more than the 4 requests"),
        (["--concurrency", "5", "--seconds", "4"], "a --rate that is not infinite"),
        (["--html", "same", "--records", "same"], "--html: same is also --records"),
        (["--json", "a.json", "--data", "a.requests.jsonl"], "a.requests.jsonl is also --data"),
    ],
)
def test_mistakes_are_reported_before_anything_is_sent(words: list[str], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        run("http://127.0.0.1:9", *words)


def test_literal_key_is_not_repeated() -> None:
    with pytest.raises(SettingError, match="expected the name") as told:
        run("http://127.0.0.1:9", "--api-key-env", "sk-abc")
    assert "sk-abc" not in str(told.value)


@pytest.mark.parametrize("end", [Unreachable("gone"), KeyboardInterrupt()], ids=["gone", "ctrl-c"])
def test_finished_runs_are_written_if_a_later_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    report, real = tmp_path / "a.json", serve.serve_runs

    def one_and_no_more(*args: Any, **more: Any) -> Iterator[MeasuredRun]:
        yield next(real(*args, **more))
        raise end

    monkeypatch.setattr(serve, "serve_runs", one_and_no_more)
    with StreamServer(completion(4, 0.0, 0.0)) as server:
        words = ["bench", "serve", server.url, *SMALL, "--repeats", "2", "--json", str(report)]
        result = CliRunner().invoke(application(), words)
    if isinstance(end, KeyboardInterrupt):
        assert result.exit_code == 130
    else:
        assert result.exception is end
    assert len(orjson.loads(report.read_bytes())["runs"]) == 1


@pytest.mark.heavy
def test_ctrl_c_reports_what_was_measured(tmp_path: Path) -> None:
    report = tmp_path / "a.json"
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        words = ["bench", "serve", replica.url, "--rate", "50", "--requests", "100000", "--json", str(report)]
        words += ["--prompt-tokens", "8", "--output-tokens", "4"]
        command = [sys.executable, "-m", "forebay", *words]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
        ) as process:
            wait_until(lambda: fetch_work(replica.url).answers > 10 or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "  interrupted: " in output.decode()
    (found,) = orjson.loads(report.read_bytes())["runs"]
    assert found["complete"] is False
    assert found["figures"]["answered"] >= 10


def test_terminal_shows_the_progress_of_a_run() -> None:
    terminal = Console(file=StringIO(), force_terminal=True, width=100)
    with run_progress(terminal, 2) as tell:
        assert tell is not None
        tell(LoadProgress(10, 4, 1, 1, 2.0))
        tell(LoadProgress(10, 3, 3, 0, 1.0))
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "1/2: 2 s, 3 in flight, 1 failed" in shown
    assert "2/2: 1 s, 0 in flight" in shown
    with run_progress(Console(file=StringIO()), 2) as tell:
        assert tell is None


@pytest.mark.heavy
def test_the_first_example_of_the_docs_is_valid() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "bench.md"
    block = page.read_text().split("```console\n")[1].split("```")[0]
    server, client = (shlex.split(line) for line in block.splitlines())
    server[server.index("8100")] = "0"
    command = [sys.executable, *server[1:], "--parent", str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        words = [url if word == "http://127.0.0.1:8100" else word for word in client]
        try:
            output = run(*words[3:])
        finally:
            process.terminate()
    assert words[:4] == ["forebay", "bench", "serve", url]
    assert "\nVALID\n" in output
    assert "50 of 50 requests answered" in output


@pytest.mark.parametrize(
    ("protocol", "words", "says"),
    [
        ("openai", ["--model", "other"], "The model `other` does not exist"),
        ("chat", ["--model", "other"], "serves the model 'other'"),
        ("tgi", [], "answered 404"),
        ("triton", ["--model", "m"], "answered 404"),
        ("triton-trtllm", ["--model", "m"], "answered 404"),
    ],
)
def test_problem_of_every_request_is_reported_before_the_load(
    protocol: str, words: list[str], says: str
) -> None:
    load = ["--requests", "20", "--concurrency", "4", "--protocol", protocol]
    with ReplicaThread(ReplicaScript(delay=Fixed(0.0))) as replica:
        with pytest.raises(ModelNotFound, match=says) as told:
            run(replica.url, *load, *words)
        assert fetch_work(replica.url).answers == 0
    assert "\n" not in str(told.value)


@pytest.mark.heavy
def test_a_page_in_place_of_a_protocol_is_reported_before_the_load() -> None:
    page = ScriptedAnswer(((0.0, b"<html>"),), content_type="text/html")
    for words in ([], ["--protocol", "tgi"], ["--protocol", "triton"]):
        with StreamServer(lambda _: page) as server:
            with pytest.raises(ProtocolViolation, match="sent no event stream but 'text/html'"):
                run(server.url, *SMALL, "--model", "m", *words)
            assert [asked.method for asked in server.asked].count("POST") == 1


LOAD = ["--protocol", "chat", "--requests", "4", "--concurrency", "2", "--output-tokens", "4"]


@pytest.mark.parametrize(
    "word", ["engine", "engine=", "engine=x", "=7", "a b=7", "engine=0", "engine=99999999999"]
)
def test_a_process_needs_a_name_and_a_number(word: str) -> None:
    with pytest.raises(SettingError, match="--process: expected NAME=PID"):
        run("http://127.0.0.1:9", "--process", word)


def test_a_process_must_be_there() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with pytest.raises(SettingError, match=f"--process engine={ended.pid}: there is no such process"):
        run("http://127.0.0.1:9", "--process", f"engine={ended.pid}")


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_report_has_samples_and_provenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_standard_output_may_have_the_document() -> None:
    with StreamServer(completion(4, 0.0, 0.0)) as server:
        output = run(server.url, *SMALL, "--prompt-tokens", "16", "--json", "-")
    (found,) = orjson.loads(output)["runs"]
    assert found["figures"]["answered"] == 20


def test_each_failure_is_counted_under_its_own_message() -> None:
    refusing = ReplicaScript(delay=Fixed(0.0), faults=Faults((("500", 0.5), ("cut", 0.5))))
    with ReplicaThread(refusing) as replica:
        output = run(replica.url, *SMALL, status=1)
    told = [line for line in output.splitlines() if " × " in line]
    assert len(told) >= 2
    assert sum(int(line.split()[0]) for line in told) == 20
