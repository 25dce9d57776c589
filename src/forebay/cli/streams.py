"""Standard streams that are closed, or whose encoding lacks characters."""

from __future__ import annotations

import io
import os
import sys

NAMES = ("input", "output")
MODES = (os.O_WRONLY, os.O_RDONLY, os.O_RDWR)
"""Reading closed input and writing closed output must fail; messages may be lost."""


def replace_closed_streams() -> list[str]:
    """Open the null device as each closed standard stream; return which of `input` and `output` it was.

    The next files that are opened would get their numbers, and receive what is printed.
    """
    closed = [number for number in range(3) if not _is_open(number)]
    for number in closed:
        # It gets the lowest free number.
        os.set_inheritable(os.open(os.devnull, MODES[number]), True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    return [NAMES[number] for number in closed if number < len(NAMES)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def print_any_text() -> None:
    """Let standard output take every character: as UTF-8, or escaped on a terminal that lacks it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding = sys.stdout.encoding if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")


def drop_output() -> None:
    """Send what is left in standard output's buffer to the null device; flushing it at exit would fail
    again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
