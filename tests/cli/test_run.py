"""`forebay run` as a command: its standard output, and how it ends on signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from rich.console import Console
from tests.cli.commands import forebay, refusal
from typer.testing import Result

from forebay.cli.run import _describe_losses, show_lost
from forebay.connectors.files.sink import read_jsonl_sink
from forebay.errors import PipelineFailed
from forebay.pipeline.plan import Plan
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.spec import PipelineSpec
from forebay.processes import wait_gone
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until


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


@pytest.fixture(autouse=True)
def _home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(home))


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "forebay", "run", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_json_document_and_results_cannot_share_standard_output(tmp_path: Path) -> None:
    text = refusal("run", str(pipeline(tmp_path)), "--json")
    assert text.startswith("--json: not possible on standard output")


def scripted(monkeypatch: pytest.MonkeyPatch, run: Callable[[PipelineSpec, Any], Snapshot]) -> None:
    """Replace the pipeline's runner with `run`, which gets the pipeline and a callback for snapshots."""

    def run_pipeline(plan: Plan, _engine: object, watch: Any, **_: object) -> Snapshot:
        return run(plan.spec, watch)

    monkeypatch.setattr("forebay.pipeline.run.run_pipeline", run_pipeline)
    monkeypatch.setattr("forebay.pipeline.flink_process.FlinkLauncher.start", lambda _self, _plan: None)


def run(file: Path, *words: str) -> Result:
    return forebay("run", str(file), "--engine", "http://127.0.0.1:1", *words)


def write_letters(spec: PipelineSpec, part: str, *causes: str) -> None:
    folder = Path(spec.directories()["dead_letters.path"])
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"cause": cause, "detail": "why"}) + "\n" for cause in causes)
    (folder / part).write_text("".join(lines))


RESULT = '{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n'


def stopped(spec: PipelineSpec, watch: Any) -> Snapshot:
    """Seven answers and two dead letters; a checkpoint has four and one of them."""
    write_letters(spec, "part-0-0.jsonl", "late")
    if "sink.path" in spec.directories():
        folder = Path(spec.directories()["sink.path"])
        folder.mkdir()
        (folder / "part-0-0.jsonl").write_text(4 * RESULT)
    watch(Snapshot(12.0, "INTERRUPTED", results=7, dead_letters=2))
    raise KeyboardInterrupt


def test_the_start_of_flink_is_announced_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, stopped)
    assert run(pipeline(tmp_path)).stderr.startswith("starting Flink\n")
    elsewhere = pipeline(tmp_path, sink={"type": "jsonl", "path": "out"})
    assert run(elsewhere, "--cluster", "10.0.0.1:8081").stderr.startswith("connecting to 10.0.0.1:8081\n")


def test_run_stopped_before_its_first_checkpoint_reports_a_fresh_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, stopped)
    text = run(pipeline(tmp_path)).stderr
    assert "stopped; run the same command to start over: there is no checkpoint yet" in text
    assert (
        "after 12 s: 7 results and 2 dead letters (those that are not committed yet and will be repeated are "
        "included)" in text
    )


def test_stopped_run_reports_its_written_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, stopped)
    text = run(pipeline(tmp_path, sink={"type": "jsonl", "path": "out"})).stderr
    assert (
        "after 12 s: 4 results and 1 dead letter written; 4 more answers are not committed yet and "
        "will be repeated" in text
    )


def test_the_cause_that_is_named_at_the_end_is_of_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = iter(["part-0-0.jsonl", "part-0-1.jsonl"])
    causes = iter([("prompt", "prompt"), ("late",)])

    def failed(spec: PipelineSpec, _watch: Any) -> Snapshot:
        write_letters(spec, next(parts), *next(causes))
        return Snapshot(12.0, "FINISHED", dead_letters=1)

    scripted(monkeypatch, failed)
    file = pipeline(tmp_path, sink={"type": "jsonl", "path": "out"})
    assert "most often prompt: why" in run(file).stderr
    assert "most often late: why" in run(file, "--fresh").stderr


def test_the_most_frequent_cause_of_a_partial_loss_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partly(spec: PipelineSpec, _watch: Any) -> Snapshot:
        write_letters(spec, "part-0-0.jsonl", "late", "late", "prompt")
        return Snapshot(12.0, "FINISHED", results=5, dead_letters=3)

    scripted(monkeypatch, partly)
    done = run(pipeline(tmp_path, sink={"type": "jsonl", "path": "out"}))
    assert done.exit_code == 0
    assert "most often late: why" in done.stderr.splitlines()
    assert "warning" not in done.stderr


def test_a_file_without_records_is_named_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda _spec, _watch: Snapshot(12.0, "FINISHED"))
    (tmp_path / "in.jsonl").write_text("")
    file = pipeline(tmp_path, source={"type": "jsonl", "path": "in.jsonl"})
    text = run(file).stderr
    assert f"nothing to read: jsonl: {tmp_path / 'in.jsonl'} is empty" in text
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    assert "nothing to read" not in run(file).stderr


class AwayLetters:
    def __iter__(self) -> Iterator[bytes]:
        raise PipelineFailed("the store is away")


def test_detail_of_the_failure_of_all_records_is_read_while_the_job_runs() -> None:
    before = b'{"cause": "malformed_record", "detail": "before the restart"}'
    letters = [before, before, b'{"cause": "bad_request", "detail": "no field x"}']
    written: Any = SimpleNamespace(dead_letters=lambda: letters)
    words = _describe_losses(written, "out")
    assert words("bad_request") == "bad_request: no field x"
    letters.clear()
    assert words("bad_request") == "bad_request, details in out"
    written.dead_letters = AwayLetters
    assert words("bad_request") == "bad_request, details in out"


def lost(*letters: tuple[str, str]) -> str:
    written = StringIO()
    lines = (json.dumps({"cause": cause, "detail": detail}).encode() for cause, detail in letters)
    show_lost(lines, Console(file=written, width=60), 19, "topic letters at broker:9092")
    return written.getvalue()


def test_few_bytes_of_lost_records_are_looked_at() -> None:
    seen = []

    def letters() -> Iterator[bytes]:
        for number in range(100):
            seen.append(number)
            yield b'{"cause": "c", "detail": "d", "input": "%b"}' % (b"x" * (16 << 20))

    written = StringIO()
    show_lost(letters(), Console(file=written, width=200), 100, "out")
    assert "most often c: d" in written.getvalue()
    assert len(seen) == 4


def test_letters_that_cannot_be_read_do_not_fail_a_finished_run() -> None:
    console = Console(file=StringIO(), width=200)
    show_lost(AwayLetters(), console, 2, "s3://b/letters")
    assert "only dead letters (2), causes in s3://b/letters" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_most_frequent_cause_and_an_example_are_named() -> None:
    one, other = ("malformed_record", "the time field 'text' holds [red]no time"), ("late", "2 s")
    assert lost(other, one, ("malformed_record", "another")) == (
        "warning: no results, only dead letters (19), most often malformed_record: the time field 'text' "
        "holds [red]no time\n"
    )


def test_record_text_is_short_and_cannot_control_the_terminal() -> None:
    text = lost(("bad_record", "\x1b[2J\x07" + "a" * 5000))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert len(text) < 600


def test_letters_that_are_not_in_files_are_located() -> None:
    assert lost() == ("warning: no results, only dead letters (19), causes in topic letters at broker:9092\n")


@pytest.mark.flink
def test_standard_output_has_only_the_results(tmp_path: Path, replica: ReplicaThread) -> None:
    out, text = start(str(pipeline(tmp_path)), "--engine", replica.url).communicate(timeout=400)
    lines = [json.loads(line) for line in out.splitlines()]
    assert len({line["position"] for line in lines}) == len(lines) == 20, text.decode()
    assert b"20 events, 20 results, 0 dead letters" in text
    assert b"the dead letters: " in text
    # Flink's libraries log these although nothing is wrong.
    assert b"GCSFileSystem" not in text


@pytest.mark.long
@pytest.mark.flink
def test_run_ends_if_its_standard_output_is_closed(tmp_path: Path, replica: ReplicaThread) -> None:
    endless = pipeline(tmp_path, source={"type": "generator", "rate": 50.0})
    running = start(str(endless), "--engine", replica.url)
    assert running.stdout is not None
    assert running.stderr is not None
    assert json.loads(running.stdout.readline())["id"]
    running.stdout.close()
    text = running.stderr.read().decode()
    assert running.wait(200) == 1, text
    assert "forebay: standard output was closed, and the job is cancelled" in text


class Run:
    """An endless run in its own process, and its output so far."""

    def __init__(self, folder: Path, replica: ReplicaThread, **document: Any) -> None:
        source = {"type": "generator", "rate": 50.0}
        self.folder = folder
        self.file = pipeline(
            folder, **{"source": source, "sink": {"type": "jsonl", "path": "out"}, **document}
        )
        self.home = folder / ".forebay" / "p" / "checkpoints"
        self._words = (str(self.file), "--engine", replica.url, "--json")
        self.process = start(*self._words)

    def again(self) -> None:
        self.process = start(*self._words)

    def flink(self) -> psutil.Process:
        (found,) = psutil.Process(self.process.pid).children()
        return found

    def jvm(self) -> psutil.Process:
        # It may have another child, which makes the class archive.
        (found,) = (
            p for p in self.flink().children() if any("GatewayServer" in word for word in p.cmdline())
        )
        return found

    def positions(self) -> list[str]:
        return [json.loads(line)["position"] for line in read_jsonl_sink(self.folder / "out")]

    def await_results(self, more: int = 1) -> None:
        """Block until this many more results are committed."""
        enough = len(self.positions()) + more
        wait_until(lambda: self.process.poll() is not None or len(self.positions()) >= enough)
        assert self.process.poll() is None, self.process.communicate()[1].decode()

    def ended(self) -> tuple[int, Any, str]:
        """Status, document, and standard error."""
        out, text = self.process.communicate(timeout=400)
        return self.process.returncode, json.loads(out) if out else None, text.decode()


@pytest.fixture
def endless(tmp_path: Path, replica: ReplicaThread) -> Iterator[Run]:
    run = Run(tmp_path, replica)
    yield run
    run.process.kill()
    run.process.communicate()


def killed(process: psutil.Process) -> None:
    process.kill()


def crashed(process: psutil.Process) -> None:
    """Ends like a crash in native code."""
    process.send_signal(signal.SIGSEGV)


@pytest.mark.long
@pytest.mark.flink
def test_a_run_whose_flink_dies_or_hangs_resumes_by_itself(endless: Run) -> None:
    endless.await_results()
    hung = endless.jvm()
    hung.suspend()
    endless.await_results(50)
    assert not hung.is_running()
    for victim, how in ((Run.flink, killed), (Run.jvm, crashed)):
        how(victim(endless))
        endless.await_results(50)
    # Calls in flight at the kills have results, too.
    expected = {f"generator@{n}" for n in range(len(endless.positions()))}
    wait_until(lambda: expected <= set(endless.positions()))
    endless.process.send_signal(signal.SIGINT)
    status, document, text = endless.ended()
    assert status == 130, text
    hang, *losses = document["resumes"]
    assert "; it is considered lost" in hang
    assert len(losses) == 2
    assert "the process that holds Flink was killed (by SIGKILL" in losses[0]
    assert "Flink's JVM crashed" in losses[1]
    assert text.count("; resuming from checkpoint chk-") == 3
    assert "Traceback" not in text
    assert "py4j" not in text.lower()
    positions = endless.positions()
    assert len(set(positions)) == len(positions)


@pytest.mark.flink
def test_stopped_run_ends_cleanly(endless: Run) -> None:
    endless.await_results(20)
    endless.process.send_signal(signal.SIGTERM)
    status, document, text = endless.ended()
    assert status == 143, text
    assert document["state"] == "INTERRUPTED"
    assert text.endswith("stopped; run the same command to resume from the newest checkpoint\n")
    assert not json.loads((endless.home / "run.json").read_text())["finished"]


@pytest.mark.slow
@pytest.mark.flink
def test_the_same_command_resumes_an_interrupted_run(endless: Run) -> None:
    for attempt in range(2):
        endless.await_results(20)
        endless.process.send_signal(signal.SIGINT)
        status, document, text = endless.ended()
        assert status == 130, text
        assert document["state"] == "INTERRUPTED"
        assert ("resuming from checkpoint chk-" in text) == (attempt == 1)
        # Checkpoints before the restored one are deleted.
        assert len([path for path in endless.home.iterdir() if path.is_dir()]) <= 2
        if attempt == 0:
            expected = {f"generator@{n}" for n in range(len(endless.positions()))}
            endless.again()
    positions = endless.positions()
    assert expected <= set(positions)
    assert len(set(positions)) == len(positions)


@pytest.mark.flink
def test_run_stopped_while_starting_shows_one_line(endless: Run) -> None:
    wait_until(lambda: bool(psutil.Process(endless.process.pid).children()))
    flink = endless.flink()
    endless.process.send_signal(signal.SIGINT)
    status, document, text = endless.ended()
    assert status == 130
    if document is None:
        assert text in {"", "stopped; run the same command to start over: there is no checkpoint yet\n"}
    else:
        # The run had begun.
        assert document["state"] == "INTERRUPTED"
        assert "Traceback" not in text
    assert not wait_gone({flink}, 60)


def test_run_with_only_dead_letters_in_a_topic_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, lambda _spec, _watch: Snapshot(12.0, "FINISHED", accepted=19, dead_letters=19))
    letters = {"type": "kafka", "bootstrap": "broker:9092", "topic": "letters"}
    text = run(pipeline(tmp_path, dead_letters=letters)).stderr
    assert "warning: no results, only dead letters (19), causes in topic letters" in text


def test_first_records_that_lack_a_field_are_a_warning_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, stopped)
    (tmp_path / "in.jsonl").write_text('{"txt": "a"}\n')
    text = run(pipeline(tmp_path, source={"type": "jsonl", "path": "in.jsonl"})).stderr
    assert text.startswith("warning: source: not even the first record can be used: prompt: field 'text' is")
