from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from forebay.engine.launch import ConsoleProgress
from forebay.engine.launch import progress as module
from forebay.engine.launch.progress import run_logged, tail
from forebay.errors import SetupError
from forebay.settings import Settings


@pytest.mark.parametrize("terminal", [True, False])
def test_step_is_shown_with_its_time(terminal: bool) -> None:
    out = io.StringIO()
    with ConsoleProgress(Console(file=out, force_terminal=terminal, width=80)).step("Installing") as detail:
        detail("Collecting [extras] torch[/b]")
        detail(r"Collecting \[extras] torch\[/b]")
    assert "Installing" in out.getvalue()
    assert re.search(r"Installing: done in [0-9]+ s", out.getvalue())


@pytest.mark.parametrize("terminal", [True, False])
def test_name_with_brackets_is_shown_unchanged(terminal: bool) -> None:
    out = io.StringIO()
    with ConsoleProgress(Console(file=out, force_terminal=terminal, width=80)).step("Starting [/m]"):
        pass
    assert "Starting [/m]: done" in out.getvalue()


def test_failed_step_is_not_reported_as_done() -> None:
    out = io.StringIO()
    with pytest.raises(KeyError), ConsoleProgress(Console(file=out)).step("Installing"):
        raise KeyError
    assert "done" not in out.getvalue()


def test_long_step_without_a_terminal_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    from .conftest import eventually

    monkeypatch.setattr(module, "STILL_AT_IT_S", 0.001)
    out = io.StringIO()
    with ConsoleProgress(Console(file=out)).step("Installing"):
        eventually(lambda: out.getvalue().count("Installing …") > 1)


def test_output_is_logged_and_passed_on_by_line(tmp_path: Path) -> None:
    lines: list[str] = []
    script = "import os, sys; print('one'); print(os.environ['GIVEN'], file=sys.stderr)"
    run_logged(
        [sys.executable, "-u", "-c", script],
        tmp_path / "log",
        detail=lines.append,
        environment={"GIVEN": "two"},
    )
    assert lines == ["one", "two"]
    assert (tmp_path / "log").read_text().splitlines()[1:] == lines


def test_command_gets_only_the_given_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-secret")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index")
    settings = Settings(tmp_path, Path(sys.executable), secret_variables=frozenset({"ENGINE_KEY"}))
    lines: list[str] = []
    script = "import os; print(*(name in os.environ for name in ('ENGINE_KEY', 'PIP_INDEX_URL', 'MORE')))"
    environment = settings.child_environment({"MORE": "1"})
    run_logged([sys.executable, "-c", script], tmp_path / "log", detail=lines.append, environment=environment)
    assert lines == ["False True True"]


def test_failure_shows_the_end_of_the_log(tmp_path: Path) -> None:
    script = "import sys; [print(f'line {i}') for i in range(100)]; sys.exit(3)"
    with pytest.raises(SetupError, match=r"status 3[\s\S]*line 99") as caught:
        run_logged([sys.executable, "-c", script], tmp_path / "log", environment={})
    assert "line 50\n" not in str(caught.value)


def test_log_tail_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 10**6 + b"\rlast bar\n\xff end\n")
    assert tail(tmp_path / "log") == "last bar\n\ufffd end"
    assert tail(tmp_path / "missing") == ""
