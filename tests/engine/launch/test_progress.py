from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from forebay.engine.launch import ConsoleProgress
from forebay.engine.launch import progress as module


@pytest.mark.parametrize("terminal", [True, False])
def test_a_step_is_shown_with_its_time(terminal: bool) -> None:
    out = io.StringIO()
    with ConsoleProgress(Console(file=out, force_terminal=terminal, width=80)).step("Installing") as detail:
        detail("Collecting [extras] torch[/b]")
        detail(r"Collecting \[extras] torch\[/b]")
    assert "Installing" in out.getvalue()
    assert re.search(r"Installing: done in [0-9]+ s", out.getvalue())


@pytest.mark.parametrize("terminal", [True, False])
def test_a_name_with_brackets_is_shown_as_it_is(terminal: bool) -> None:
    out = io.StringIO()
    with ConsoleProgress(Console(file=out, force_terminal=terminal, width=80)).step("Starting [/m]"):
        pass
    assert "Starting [/m]: done" in out.getvalue()


def test_a_step_that_fails_is_not_called_done() -> None:
    out = io.StringIO()
    with pytest.raises(KeyError), ConsoleProgress(Console(file=out)).step("Installing"):
        raise KeyError
    assert "done" not in out.getvalue()


def test_without_a_terminal_a_long_step_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from .conftest import eventually

    monkeypatch.setattr(module, "STILL_AT_IT_S", 0.001)
    out = io.StringIO()
    with ConsoleProgress(Console(file=out)).step("Installing"):
        eventually(lambda: out.getvalue().count("Installing …") > 1)
