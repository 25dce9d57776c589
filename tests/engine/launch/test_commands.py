from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forebay.engine.launch.commands import run_logged, tail
from forebay.errors import SetupError


def test_output_goes_to_the_log_and_line_by_line_to_the_caller(tmp_path: Path) -> None:
    lines: list[str] = []
    script = "import os, sys; print('one'); print(os.environ['GIVEN'], file=sys.stderr)"
    run_logged(
        [sys.executable, "-u", "-c", script],
        tmp_path / "log",
        detail=lines.append,
        extra_env={"GIVEN": "two"},
    )
    assert lines == ["one", "two"]
    assert (tmp_path / "log").read_text().splitlines()[1:] == lines


def test_a_failure_shows_the_end_of_the_log(tmp_path: Path) -> None:
    script = "import sys; [print(f'line {i}') for i in range(100)]; sys.exit(3)"
    with pytest.raises(SetupError, match=r"status 3[\s\S]*line 99") as caught:
        run_logged([sys.executable, "-c", script], tmp_path / "log")
    assert "line 50\n" not in str(caught.value)


def test_the_tail_of_a_log_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 10**6 + b"\rlast bar\n\xff end\n")
    assert tail(tmp_path / "log") == "last bar\n\ufffd end"
    assert tail(tmp_path / "missing") == ""
