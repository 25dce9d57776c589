"""`python -m benchmarks autoscale`: wrong options are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.__main__ import application
from typer.testing import CliRunner

from forebay.errors import SettingError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--load", "weeks"], "--load"),
        (["--boot", "-1"], "--boot"),
        (["--slo", "1"], "--slo"),
        (["--stretch", "0"], "--stretch"),
        (["--replicas", "1000"], "--replicas"),
        ([], "cannot be read"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, words: list[str], expected: str) -> None:
    command = ["autoscale", "--trace", str(tmp_path / "none.csv"), *words]
    with pytest.raises(SettingError, match=expected):
        CliRunner().invoke(application(), command, catch_exceptions=False)
