"""A run is shown while it runs: as a page with `--ui`, and in the terminal what its application finds."""

from __future__ import annotations

import re
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console
from tests.cli.commands import refusal
from tests.cli.test_run import pipeline, scripted
from tests.pipeline.live.runs import Run, result, trend
from typer.testing import CliRunner, Result

from forebay.cli import application
from forebay.cli.output import port_of
from forebay.cli.watch import Watched, has_browser
from forebay.errors import PipelineFailed, SettingError
from forebay.pipeline.live.outputs import RunOutputs
from forebay.pipeline.live.server import PageServer
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.spec import PipelineSpec
from forebay.testing.waiting import wait_until

DONE = Snapshot(12.0, "FINISHED", accepted=2, results=2)


def commit(spec: PipelineSpec, number: int, *lines: dict[str, Any]) -> None:
    folder = Path(spec.directories()["sink.path"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"part-x-{number}.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def run(*words: str) -> Result:
    return CliRunner().invoke(application(), ["run", *words, "--engine", "http://127.0.0.1:1"])


def why(number: int, words: str) -> dict[str, Any]:
    answer = {"kind": "why", "trend": number, "of": "born", "name": "storm", "why": words, "time_ms": 60_000}
    return {"id": "w", "key": "0", "answer": answer, "position": f"trend-{number}-born", "usage": {}}


@pytest.fixture
def news(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines about what an application has found, as they are printed."""
    found: list[str] = []
    monkeypatch.setattr("forebay.cli.watch.one_line", lambda text: found.append(text) or text)
    return found


@pytest.mark.heavy
def test_trends_are_printed_as_found_and_the_top_five_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, news: list[str]
) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}

    def find(spec: PipelineSpec, watch: Callable[[Snapshot], None]) -> Snapshot:
        wait_until(lambda: bool(looks))
        commit(spec, 0, *({**trend(n, f"storm {n}"), "usage": usage} for n in range(7)))
        commit(spec, 1, {**why(0, "It rains."), "usage": usage})
        watch(DONE)
        wait_until(lambda: len(news) == 8)
        return DONE

    looks: list[int] = []
    look = RunOutputs.look
    monkeypatch.setattr(RunOutputs, "look", lambda self: (look(self), looks.append(1))[0])

    scripted(monkeypatch, find)
    text = run("trends", "--source", "generator", "--out", str(tmp_path / "out")).stderr
    assert "trend storm 3 (2.50 posts/s, 0.10 before): big storm\n" in text
    assert "trend storm: It rains.\n" in text
    last = text.splitlines()[-6:]
    assert last[0] == f"this run as a page: {tmp_path}/out/page.html"
    assert last[1] == "1. storm 0: 2.50 posts/s at 00:01:05 – It rains."
    assert [line[:2] for line in last[1:]] == ["1.", "2.", "3.", "4.", "5."]
    assert "It rains." in (tmp_path / "out" / "page.html").read_text()


def test_failed_run_leaves_its_page_and_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(spec: PipelineSpec, watch: Callable[[Snapshot], None]) -> Snapshot:
        commit(spec, 0, trend(0, "storm"))
        watch(Snapshot(7.0, "FAILED", failure="the disk is full"))
        raise PipelineFailed("the disk is full")

    scripted(monkeypatch, fail)
    ended = run("trends", "--source", "generator", "--out", str(tmp_path / "out"))
    assert isinstance(ended.exception, PipelineFailed)
    assert "1. storm: 2.50 posts/s" in ended.stderr
    assert "the disk is full" in (tmp_path / "out" / "page.html").read_text()


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def block(spec: PipelineSpec, watch: Callable[[Snapshot], None]) -> Snapshot:
        commit(spec, 0, {**trend(0, "storm"), "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        (tmp_path / "out" / "page.html").mkdir()
        return DONE

    scripted(monkeypatch, block)
    ended = run("trends", "--source", "generator", "--out", str(tmp_path / "out"))
    assert ended.exception is None
    assert f"the page {tmp_path}/out/page.html cannot be written: Is a directory\n" in ended.stderr
    assert "1. storm: 2.50 posts/s" in ended.stderr


def test_unprintable_findings_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def news(self: object, answer: object) -> str:
        raise RuntimeError("odd")

    made = Run(tmp_path, application={"type": "trends"})
    monkeypatch.setattr(type(made.spec.application), "news", news)
    watched = Watched(made.spec, Console(), lambda now: None)
    watched._outputs.look()
    made.commit("results", trend(0), trend(1))
    watched._outputs.look()
    assert watched._outputs.results.added == 2
    assert "odd" in caplog.text


@pytest.mark.heavy
def test_the_page_is_served_while_the_run_lasts_and_written_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []

    def serve(spec: PipelineSpec, watch: Callable[[Snapshot], None]) -> Snapshot:
        watch(Snapshot(7.0, "RUNNING", accepted=9, results=2))
        commit(spec, 0, result(1), result(2))
        with urllib.request.urlopen(addresses[0]) as answer:
            pages.append(answer.read().decode())
        return DONE

    addresses: list[str] = []
    start = PageServer.start
    monkeypatch.setattr(PageServer, "start", lambda self: (addresses.append(self.url), start(self))[1])
    scripted(monkeypatch, serve)
    text = run(str(pipeline(tmp_path, sink={"type": "jsonl", "path": "out"})), "--ui")
    assert f"watch this run at {addresses[0]}\n" in text.stderr
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{22}/", addresses[0])
    assert "running for 7.0 s" in pages[0]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(addresses[0])
    assert "t-2" in (tmp_path / "out" / "page.html").read_text()
    shown = CliRunner().invoke(application(), ["show", str(tmp_path / "out")])
    assert shown.stdout == f"{(tmp_path / 'out' / 'page.html').as_uri()}\n"


@pytest.mark.parametrize(
    ("browser", "opens"),
    [
        (webbrowser.BackgroundBrowser("xdg-open"), True),
        (webbrowser.Chrome("chromium"), True),
        (webbrowser.GenericBrowser("w3m"), False),
    ],
)
def test_a_browser_for_the_terminal_is_not_opened(
    monkeypatch: pytest.MonkeyPatch, browser: webbrowser.BaseBrowser, opens: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(webbrowser, "get", lambda: browser)
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_browser() == opens
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not has_browser()


def test_a_folder_without_a_page_is_refused(tmp_path: Path) -> None:
    assert "expected an HTML page, or a folder with page.html" in refusal("show", str(tmp_path))
    (tmp_path / "p.yaml").touch()
    assert "expected an HTML page, or a folder with page.html" in refusal("show", str(tmp_path / "p.yaml"))


@pytest.mark.parametrize("port", ["-1", "65536", "x", "8²"])
def test_a_wrong_port_is_refused(port: str) -> None:
    with pytest.raises(SettingError, match="--ui: expected a port"):
        port_of(port)


def test_application_file_prints_its_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(spec: PipelineSpec, watch: Callable[[Snapshot], None]) -> Snapshot:
        commit(spec, 0, trend(0, "storm"))
        return DONE

    scripted(monkeypatch, find)
    file = tmp_path / "p.yaml"
    document = {
        "name": "p",
        "source": {"type": "generator"},
        "application": {"type": "trends"},
        "sink": {"type": "jsonl", "path": "out"},
    }
    file.write_bytes(orjson.dumps(document))
    text = run(str(file)).stderr
    assert "1. storm: 2.50 posts/s" in text
    assert "page" not in text


def test_without_ui_a_pipeline_writes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, lambda spec, watch: DONE)
    assert "page" not in run(str(pipeline(tmp_path, sink={"type": "jsonl", "path": "out"}))).stderr
