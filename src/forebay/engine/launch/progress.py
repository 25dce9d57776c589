"""How long steps are shown: a protocol, one that shows nothing, one for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Thread
from typing import Protocol

from rich.console import Console
from rich.progress import Progress as RichBar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from forebay.control_characters import replace_controls

STILL_AT_IT_S = 30.0


class Progress(Protocol):
    """Told of each long step."""

    def step(self, title: str) -> AbstractContextManager[Callable[[str], None]]:
        """Entered when the step begins, left when it ends; the function takes a line of detail."""
        ...


class Silent:
    """Shows nothing."""

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        yield lambda detail: None


class ConsoleProgress:
    """A spinner with elapsed time on a terminal; elsewhere a line at begin and end, and one every 30 s."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        begin = time.monotonic()
        with self._bar(title) if self._console.is_terminal else self._lines(title) as detail:
            yield detail
        self._say(f"{title}: done in {time.monotonic() - begin:.0f} s")

    @contextmanager
    def _bar(self, title: str) -> Iterator[Callable[[str], None]]:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim", markup=False),
        )
        with RichBar(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(title, total=None, detail="")
            width = max(20, self._console.width - len(title) - 20)
            yield lambda detail: bar.update(task, detail=replace_controls(detail[:width]))

    @contextmanager
    def _lines(self, title: str) -> Iterator[Callable[[str], None]]:
        self._say(f"{title} …")
        begin, ended = time.monotonic(), Event()

        def remind() -> None:
            while not ended.wait(STILL_AT_IT_S):
                self._say(f"{title} … {time.monotonic() - begin:.0f} s")

        thread = Thread(target=remind, name="forebay-progress", daemon=True)
        thread.start()
        try:
            yield lambda detail: None
        finally:
            ended.set()
            thread.join()

    def _say(self, text: str) -> None:
        self._console.print(
            replace_controls(text), highlight=False, markup=False, emoji=False, soft_wrap=True
        )
