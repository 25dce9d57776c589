"""Show long steps, and run commands with their output in a log."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

from rich.console import Console
from rich.progress import Progress as RichBar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from forebay.errors import SetupError
from forebay.untrusted_text import replace_controls

STILL_AT_IT_S = 30.0


class Progress(Protocol):
    def step(self, title: str) -> AbstractContextManager[Callable[[str], None]]: ...


class Silent:
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
        self._note(f"{title}: done in {time.monotonic() - begin:.0f} s")

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
        self._note(f"{title} …")
        begin, ended = time.monotonic(), Event()

        def remind() -> None:
            while not ended.wait(STILL_AT_IT_S):
                self._note(f"{title} … {time.monotonic() - begin:.0f} s")

        thread = Thread(target=remind, name="forebay-progress", daemon=True)
        thread.start()
        try:
            yield lambda detail: None
        finally:
            ended.set()
            thread.join()

    def _note(self, text: str) -> None:
        self._console.print(
            replace_controls(text), highlight=False, markup=False, emoji=False, soft_wrap=True
        )


TAIL_LINES = 15
TAIL_BYTES = 16_384


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.rstrip().split("\n")[-lines:])


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    *,
    detail: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str],
    keep_fds: Sequence[int] = (),
) -> None:
    """Run `command`, append its output to `log` and pass each line to `detail`; blocks until it has ended.

    `environment` is the command's whole environment. Raises `SetupError` with the log's tail on failure.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = [str(part) for part in command]
    with log.open("ab") as file:
        file.write(f"$ {' '.join(arguments)}\n".encode())
        file.flush()
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=tuple(keep_fds),
            )
        except OSError as error:
            raise SetupError(f"{arguments[0]} cannot be run: {error.strerror}") from None
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                file.flush()
                detail(line.decode("utf-8", "replace").strip())
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()
    if status != 0:
        raise SetupError(
            f"{Path(arguments[0]).name} {' '.join(arguments[1:5])} … ended with status {status}; "
            f"the end of {log}:\n{tail(log)}"
        )
