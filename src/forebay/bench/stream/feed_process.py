"""The feed in its own process."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from types import TracebackType

from forebay.errors import LaunchError
from forebay.processes import module_command, parent_death_signal


class FeedProcess:
    """Runs `forebay.bench.stream.feed` for the length of a block. `url`: its address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> FeedProcess:
        self._process = subprocess.Popen(
            module_command("forebay.bench.stream.feed"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=parent_death_signal(signal.SIGKILL),  # noqa: PLW1509
        )
        self.url = self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self, path: Path) -> None:
        """Send the events of a file when they are due; blocks until the file is read."""
        self._say(str(path))

    def report(self) -> dict[str, tuple[int, int]]:
        """For written events by id: when each could have been written, and when it was."""
        path = self._folder / "emitted.txt"
        self._say(f"report {path}")
        rows = (line.split() for line in path.read_text().splitlines())
        return {id: (int(free), int(at)) for id, free, at in rows}

    def check(self) -> None:
        if self._process.poll() is not None:
            raise LaunchError(f"the feed ended with status {self._process.poll()}")

    def _say(self, words: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{words}\n")
            self._process.stdin.flush()
        except OSError:
            self.check()
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise LaunchError("the feed ended; see its standard error")
        return answer
