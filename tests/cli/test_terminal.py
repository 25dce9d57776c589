"""Every text is shown as it is, brackets and all."""

from __future__ import annotations

import ast
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

import forebay
from forebay import cli
from forebay.cli.dead_letter_hint import show_lost
from forebay.cli.live import LiveLine, report
from forebay.cli.terminal import errors_console, results_console, say
from forebay.engine.launch import ConsoleProgress
from forebay.errors import SetupError
from forebay.runtime.snapshot import Snapshot

TEXT = "pip install 'forebay[x]' [red]now[/] [/] :smile: [link=http://a.b]"
SOURCES = Path(forebay.__file__).parent
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("make", [results_console, errors_console])
def test_a_message_and_a_table_are_whole(make: object, capsys: pytest.CaptureFixture[str]) -> None:
    console = make()  # type: ignore[operator]
    say(console, TEXT)
    say(console, TEXT, style="red")
    console.width = 200
    table = Table(TEXT, title=None, box=None)
    table.add_row(TEXT)
    console.print(table)
    printed = "".join(capsys.readouterr())
    assert printed.count(TEXT) == 4


def test_a_message_is_whole_on_any_console() -> None:
    """One that somebody else has made, markup and all."""
    out = StringIO()
    console = Console(file=out, width=40)
    say(console, TEXT)
    with ConsoleProgress(console).step(TEXT) as detail:
        detail(TEXT)
    assert out.getvalue().count(TEXT) == 3


def test_a_bar_is_whole() -> None:
    out = StringIO()
    console = Console(file=out, width=300, force_terminal=True, color_system=None)
    with ConsoleProgress(console).step(TEXT) as detail:
        detail(TEXT)
    assert out.getvalue().count(TEXT) >= 2


def test_a_runs_lines_are_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    console = errors_console()
    LiveLine(console).show(Snapshot(1.0, "RUNNING", restarts=1, failure=TEXT))
    report(Snapshot(1.0, TEXT), one_each=True, json=None, console=console, limited=TEXT)
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "part-a-0.jsonl").write_text('{"cause": "[x]", "detail": "[y] :smile:"}\n')
    show_lost(str(folder), console)
    said = capsys.readouterr().err
    assert f"Flink restarts the job: {TEXT}" in said
    assert f"; {TEXT}" in said
    assert "most often [x]: [y] :smile:" in said


def test_an_error_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def application() -> None:
        raise SetupError(TEXT)

    monkeypatch.setattr(cli, "application", lambda: application)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == f"forebay: {TEXT}\n"


@pytest.mark.parametrize("file", sorted([*SOURCES.rglob("*.py"), *BENCHMARKS.rglob("*.py")]), ids=str)
def test_no_command_makes_a_console_of_its_own(file: Path) -> None:
    if file.name == "terminal.py":
        return
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if getattr(call.func, "id", "") == "Console"]
