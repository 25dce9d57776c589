"""What the commands print on: consoles that show every text as it is.

Rich takes `[x]` for markup and `:x:` for an emoji. Neither may happen to a text that is not ours, and in ours
there is none, so no console of a command knows either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.control_characters import replace_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def results_console() -> Console:
    """Standard output."""
    return _console(stderr=False)


def errors_console() -> Console:
    """Standard error: progress and messages."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def say(console: Console, words: str | Text, *, style: str | None = None) -> None:
    """Print `words` whole, whatever the terminal's width; control characters in a `str` are replaced."""
    shown = replace_controls(words) if isinstance(words, str) else words
    console.print(shown, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)
