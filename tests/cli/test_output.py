"""`--json` works the same in all commands."""

from __future__ import annotations

import ast
import json
from io import StringIO
from pathlib import Path

import pytest
from benchmarks.__main__ import application as benchmarks
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

import forebay
from forebay import cli
from forebay.cli import application
from forebay.cli.live import LiveLine, report
from forebay.cli.output import (
    check_json,
    errors_console,
    print_line,
    results_console,
    shows_text,
    with_values,
    write_file,
    write_json,
)
from forebay.cli.run import show_lost
from forebay.engine.launch import ConsoleProgress
from forebay.errors import SettingError, SetupError
from forebay.pipeline.snapshot import Snapshot

TEXT = "pip install 'forebay[x]' [red]now[/] [/] :smile: [link=http://a.b]"
SOURCES = Path(forebay.__file__).parent
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("make", [results_console, errors_console])
def test_messages_and_tables_are_not_wrapped(make: object, capsys: pytest.CaptureFixture[str]) -> None:
    console = make()  # type: ignore[operator]
    print_line(console, TEXT)
    print_line(console, TEXT, style="red")
    console.width = 200
    table = Table(TEXT, title=None, box=None)
    table.add_row(TEXT)
    console.print(table)
    printed = "".join(capsys.readouterr())
    assert printed.count(TEXT) == 4


def test_messages_are_not_wrapped_on_any_console() -> None:
    """An external message, including markup."""
    out = StringIO()
    console = Console(file=out, width=40)
    print_line(console, TEXT)
    with ConsoleProgress(console).step(TEXT) as detail:
        detail(TEXT)
    assert out.getvalue().count(TEXT) == 3


def test_lines_of_a_run_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    console = errors_console()
    LiveLine(console).show(Snapshot(1.0, "RUNNING", restarts=1, failure=TEXT))
    report(Snapshot(1.0, TEXT), one_each=True, json=None, console=console, limited=TEXT)
    show_lost([b'{"cause": "[x]", "detail": "[y] :smile:"}'], console, 1, TEXT)
    text = capsys.readouterr().err
    assert f"Flink restarts the job: {TEXT}" in text
    assert f"; {TEXT}" in text
    assert "most often [x]: [y] :smile:" in text


def test_an_error_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def application() -> None:
        raise SetupError(TEXT)

    monkeypatch.setattr(cli, "application", lambda: application)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == f"forebay: {TEXT}\n"


def test_no_command_makes_a_console_of_its_own() -> None:
    texts = {file: file.read_text() for file in [*SOURCES.rglob("*.py"), *BENCHMARKS.rglob("*.py")]}
    # Parsing all would take seconds.
    named = [file for file, text in texts.items() if "Console(" in text and file.name != "output.py"]
    calls = [
        node for file in named for node in ast.walk(ast.parse(texts[file])) if isinstance(node, ast.Call)
    ]
    assert not [call.lineno for call in calls if getattr(call.func, "id", "") == "Console"]


SILENT = frozenset(
    ("forebay ask", "forebay autoscale kubernetes", "forebay autoscale ray", "forebay init", "forebay show")
)
"""Commands whose output is answers, a log, a file and an address."""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--json"], ["--json", "-"]),
        (["--json", "-"], ["--json", "-"]),
        (["--json", "a.json", "p.yaml"], ["--json", "a.json", "p.yaml"]),
        (["--json", "--fresh"], ["--json", "-", "--fresh"]),
        (["--json=a.json"], ["--json=a.json"]),
        (["a", "--", "--json"], ["a", "--", "--json"]),
        (["--kafka", "--json"], ["--kafka", "local", "--json", "-"]),
        (["--kafka=h:1", "--kafka", "h:1"], ["--kafka=h:1", "--kafka", "h:1"]),
        (["--ui", "8080", "p.yaml"], ["--ui", "8080", "p.yaml"]),
        (["--ui", "p.yaml", "--ui"], ["--ui", "0", "p.yaml", "--ui", "0"]),
    ],
)
def test_the_file_may_be_left_out(words: list[str], found: list[str]) -> None:
    assert with_values(words) == found


def commands(name: str, command: object) -> dict[str, object]:
    if isinstance(command, TyperGroup):
        found = {name: command} if command.callback and command.invoke_without_command else {}
        for word, inner in command.commands.items():
            found |= commands(f"{name} {word}", inner)
        return found
    return {name: command}


def test_every_command_that_reports_has_it() -> None:
    found = commands("forebay", get_command(application())) | commands(
        "benchmarks", get_command(benchmarks())
    )
    for command in (found[name] for name in found if name not in SILENT):
        (option,) = [one for one in command.params if "--json" in getattr(one, "opts", ())]  # type: ignore[attr-defined]
        assert (option.metavar, option.default) == ("[FILE]", None)


def test_a_file_is_indented_and_standard_output_has_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "a.json")
    write_json(file, {"a": 1})
    write_json("-", {"a": 1})
    write_json(None, {"a": 1})
    assert Path(file).read_text() == '{\n  "a": 1\n}\n'
    assert capsys.readouterr().out == '{"a":1}\n'
    assert [shows_text(target) for target in (None, file, "-")] == [True, True, False]


def test_unwritable_report_is_rejected_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--json: expected a file, found the folder"):
        check_json(str(tmp_path))
    with pytest.raises(SettingError, match="--json: there is no folder"):
        check_json(str(tmp_path / "none" / "a.json"))
    with pytest.raises(SettingError, match="or - for standard output"):
        check_json("")
    check_json("-")
    check_json(None)


def test_a_report_in_a_file_leaves_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    file = tmp_path / "a.json"
    done = CliRunner().invoke(application(), ["engine", "down", "--json", str(file)])
    assert "0 replica" in done.stdout
    assert json.loads(file.read_text()) == {"ended": []}
    alone = CliRunner().invoke(application(), ["engine", "down", "--json"])
    assert json.loads(alone.stdout) == {"ended": []}


def test_a_pipeline_is_never_taken_for_the_report(tmp_path: Path) -> None:
    """`--json p.yaml` without a pipeline is an error, and overwrites nothing."""
    file = tmp_path / "p.yaml"
    file.write_text("name: p\n")
    assert CliRunner().invoke(application(), ["run", "--json", str(file)]).exit_code == 2
    assert file.read_text() == "name: p\n"


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--html: .* cannot be written: Is a directory"):
        write_file("--html", tmp_path, b"")


def test_progress_bars_are_not_wrapped() -> None:
    out = StringIO()
    console = Console(file=out, width=300, force_terminal=True, color_system=None)
    with ConsoleProgress(console).step(TEXT) as detail:
        detail(TEXT)
    assert out.getvalue().count(TEXT) >= 2
