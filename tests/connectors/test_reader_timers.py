"""Whenever a checkpoint is triggered, it has the reader's timer for the end of the input: its contents are
read to the end, even if nothing calls the reader any more."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forebay.codec import decode
from forebay.connectors.event_time import EventTime
from forebay.connectors.feeds import source as feed_source
from forebay.connectors.feeds.feed import Received
from forebay.connectors.feeds.source import Polled, polled_source
from forebay.connectors.files import follow
from forebay.connectors.files import source as files
from forebay.connectors.files.source import Files, ReplaySpeed, file_source, replay_source
from forebay.connectors.formats import Format
from forebay.connectors.python_source import CallLimit, calls
from forebay.errors import ForebayError, LaunchError
from forebay.flink.job import RunningJob, submit
from forebay.flink.jvm_task import is_cancelled
from forebay.flink.types import BYTES
from forebay.ports import free_port
from forebay.testing.waiting import wait_until

pytestmark = pytest.mark.flink

ROWS = [b'%d,1000,"row\n%d"' % (n, n) for n in range(6)]
LAST = b'6,1000,"open at the end'
CALLS = 3
RESTORED = 6
LAST_MOMENT = f"{CALLS}-behind"
FORM = Format("csv", columns=("n", "at", "text"), time=EventTime("at", "unix_s"))


@dataclass
class Rows:
    """A feed of the same rows; the last one comes once the file `gate` exists, while the end timer reads
    on."""

    gate: Path
    name: str = "rows"

    async def read(self, cursor: str | None) -> AsyncIterator[Received]:
        rows = [*ROWS, LAST]
        for number in range(0 if cursor is None else int(cursor) + 1, len(rows)):
            if number == len(rows) - 1:
                await asyncio.to_thread(wait_until, self.gate.exists)
            yield Received(str(number), rows[number], f"rows@{number}")


@dataclass(frozen=True)
class Moments:
    """A function pauses at each of its moments until the test continues it."""

    folder: Path

    def stand(self, name: str) -> None:
        """Called by the function. It pauses at each moment only once."""
        if not (self.folder / name).exists():
            (self.folder / name).touch()
            wait_until(lambda: (self.folder / f"{name}.go").exists() or is_cancelled())
            if is_cancelled():
                raise ForebayError("cancelled")

    def stands(self) -> str | None:
        """The moment at which it is paused."""
        names = {path.name for path in self.folder.iterdir()}
        return next((name for name in names if not name.endswith(".go") and f"{name}.go" not in names), None)

    def let_go(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()


def watched(reader: Any, folder: Path) -> Any:
    """A class like `reader` that records its calls and the end timer in files in `folder`."""

    class Watched(reader):  # type: ignore[misc]
        def process_element(self, value: Any, ctx: Any) -> Iterator[bytes]:
            yield from super().process_element(value, ctx)
            (folder / "called").touch()

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[bytes]:
            (folder / "ended").touch()
            yield from super().on_timer(timestamp, ctx)

    return Watched


def standing(reader: Any, moments: Moments) -> Any:
    """A class like `reader` that pauses before, within and after each of its first calls, and at the end.

    A call emits one record if the reader limits its calls.
    """

    class Standing(reader):  # type: ignore[misc]
        _stood_calls = 0

        def open(self, runtime_context: Any) -> None:
            super().open(runtime_context)
            if hasattr(self, "_call"):
                self._call = CallLimit(lambda: False)

        def process_element(self, value: Any, ctx: Any) -> Iterator[bytes]:
            self._stood_calls += 1
            if self._stood_calls > CALLS:
                yield from super().process_element(value, ctx)
                return
            moments.stand(f"{self._stood_calls}-before")
            for number, each in enumerate(super().process_element(value, ctx)):
                yield each
                if number == 0:
                    moments.stand(f"{self._stood_calls}-within")
            moments.stand(f"{self._stood_calls}-behind")

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[bytes]:
            moments.stand("end")
            yield from super().on_timer(timestamp, ctx)

    return Standing


class Note:
    """Writes elements to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, data: bytes) -> bytes:
        with self._path.open("ab") as file:
            file.write(decode(bytes(data)).raw.replace(b"\n", b" ") + b"\n")
        return bytes(data)


def file_rows(env: Any, folder: Path, *, follow: bool) -> Any:
    return file_source(env, Files(folder / "in", FORM, follow=follow, every_s=0.05))


READERS: dict[str, tuple[Any, str, Callable[[Any, Path], Any]]] = {
    "file": (files, "ReadPieces", lambda env, folder: file_rows(env, folder.parent, follow=False)),
    "followed": (follow, "FollowFolder", lambda env, folder: file_rows(env, folder.parent, follow=True)),
    "replay": (
        files,
        "ReplayRecords",
        lambda env, folder: replay_source(env, Files(folder.parent / "in", FORM), ReplaySpeed()),
    ),
    "feed": (
        feed_source,
        "Poll",
        lambda env, folder: polled_source(env, Polled(Rows(folder / "ended"), FORM, limit=len(ROWS) + 1)),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", list(READERS))
def test_any_checkpoint_holds_the_end_of_input_timer(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    module, name, source = READERS[kind]
    reader = getattr(module, name)
    (tmp_path / "in").mkdir()
    rows = [*ROWS, LAST]
    (tmp_path / "in" / "rows.csv").write_bytes(b"\n".join(rows))
    (tmp_path / "moments").mkdir()
    moments = Moments(tmp_path / "moments")
    drains = kind in ("followed", "feed")
    # No more calls follow: the timer reads the rest.
    if kind == "replay":
        monkeypatch.setattr(files, "calls", lambda env, count, name: calls(env, count=CALLS, name=name))

    def start(function: Any, run: Path, **changes: Any) -> RunningJob:
        run.mkdir()
        monkeypatch.setattr(module, name, function)
        port = free_port()
        options = {"rest.port": str(port), "rest.bind-port": str(port)}
        env = jobs.environment(options=options, checkpoint_interval_s=0.05, checkpoints_kept=1000, **changes)
        jobs.write(source(env, run).map(Note(run / "noted"), BYTES).set_parallelism(1))
        return submit(env, "test", jobs.rest(port))

    job = start(standing(reader, moments), tmp_path / "first")
    stood, doubtful = "", 0
    while stood != (LAST_MOMENT if drains else "end"):
        wait_until(lambda: moments.stands() is not None)
        stood = moments.stands() or ""
        # A checkpoint is on its way to the task, which takes it up when the call has ended.
        wait_until(lambda: (now := job.checkpoints()).newest > now.newest_done)
        if stood == f"{CALLS}-before":
            # The task may have started this one before the call, or start it after the call.
            doubtful = job.checkpoints().newest
        if stood != "end":
            moments.let_go(stood)
    done = job.checkpoints().newest_done
    wait_until(lambda: stood == "end" or job.checkpoints().newest_done > max(done, doubtful))
    found = [path.parent for path in jobs.checkpoints.glob(f"{job.id}/chk-*/_metadata")]
    job.cancel()
    wait_until(lambda: job.ended() is not None)

    def number(path: Path) -> int:
        return int(path.name.removeprefix("chk-"))

    kept = sorted((path for path in found if not drains or number(path) != doubtful), key=number)
    restored = [*kept[: -1 : math.ceil(len(kept) / RESTORED)], kept[-1]]
    everything = [row.replace(b"\n", b" ") for row in rows]
    lengths = []
    for checkpoint in restored:
        run = tmp_path / checkpoint.name
        job = start(watched(reader, run), run, restore_from=checkpoint)
        # A job that is drained ends before it is called again.
        read = number(checkpoint) > doubtful
        while (end := job.ended()) is None:
            if drains and (read or (run / "called").exists()):
                with suppress(LaunchError):
                    job.drain(tmp_path / "savepoints")
        assert end == ""
        got = (run / "noted").read_bytes().splitlines()
        assert got == everything[-len(got) :]
        lengths.append(len(got))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < len(everything)
