"""Progress of `forebay bench serve`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.bench.client import LoadProgress


@contextmanager
def run_progress(console: Console, runs: int) -> Iterator[Callable[[LoadProgress], None] | None]:
    """A progress bar on a terminal, nothing elsewhere.

    The event loop draws it; a drawing thread would take the interpreter from it at any moment.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task, run, last = bar.add_task(""), 1, 0

        def tell(progress: LoadProgress) -> None:
            nonlocal run, last
            if progress.sent < last:
                run += 1
            last = progress.sent
            in_flight = progress.sent - progress.ended
            failed = f", {progress.failed} failed" if progress.failed else ""
            words = f"{run}/{runs}: {progress.passed_s:.0f} s, {in_flight} in flight{failed}"
            bar.update(task, description=words, total=progress.requests, completed=progress.ended)
            bar.refresh()

        yield tell
