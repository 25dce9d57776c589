"""Commands of `forebay`, run in the tests' process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from forebay.cli import application
from forebay.errors import SettingError


def forebay(*words: str) -> Result:
    return CliRunner().invoke(application(), words)


def refusal(*words: str) -> str:
    """The message with which a command refuses a setting."""
    error = forebay(*words).exception
    assert isinstance(error, SettingError), error
    return str(error)
