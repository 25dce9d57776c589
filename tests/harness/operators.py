"""Checkpoints as Flink leaves them on disk, without Flink."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
import psutil
from pyflink.common import Time, Types
from pyflink.datastream import DataStream, ProcessWindowFunction
from pyflink.datastream.window import TumblingEventTimeWindows

from forebay.clock import Clock
from forebay.codec import decode
from forebay.connectors.event_time import EventTime
from forebay.connectors.files.sink import JsonlFiles, committed_parts, jsonl_sink, read_jsonl_sink
from forebay.connectors.files.source import Files, file_source
from forebay.connectors.formats import Format, dead_letter_json, result_json
from forebay.engine import Deadline, Engine, EngineFactory
from forebay.engine.prompt import FieldTemplate, PromptTemplate
from forebay.engine.retry import RetryPolicy
from forebay.flink.checkpoints import HEADER, MARK, METADATA, NEWEST_VERSION, newest_checkpoint
from forebay.flink.environment import FlinkConfig, embedded_rest, flink_environment
from forebay.flink.event_time import with_event_time
from forebay.flink.infer import InferenceStreams, infer, infer_stateful
from forebay.flink.job import RunningJob, submit
from forebay.flink.request_handler import InferenceSpec
from forebay.flink.request_pool import Ordering, PollInterval
from forebay.flink.rest import RestSilent
from forebay.ports import free_port
from forebay.records import JSON, Completion, Event, Request
from forebay.stateful.program import Program
from forebay.testing.answers import request_text
from forebay.testing.engine import ScriptedEngineFactory
from forebay.testing.script import Delay, Fixed
from forebay.testing.waiting import POLL_S, wait_until


def complete_checkpoint(job: Path, number: int, *, name: str | None = None) -> Path:
    checkpoint = job / (name or f"chk-{number}")
    checkpoint.mkdir(parents=True, exist_ok=True)
    # Like Flink: a file with its final name is complete.
    unfinished = checkpoint / f".{METADATA}.inprogress"
    unfinished.write_bytes(HEADER.pack(MARK, NEWEST_VERSION, number))
    os.replace(unfinished, checkpoint / METADATA)
    return checkpoint


T = TypeVar("T")
HOLD = re.compile(r"\(\(hold:([a-z0-9_-]+)\)\)")
DEFECT = re.compile(r"\(\(defect(?::([a-z0-9_-]+))?\)\)")
FRESH = {"web.refresh-interval": "100", "metrics.fetcher.update-interval": "100"}
"""Without these, Flink's REST service reports values that are three or ten seconds old."""


@dataclass(frozen=True, slots=True)
class GatedEngineFactory:
    """An engine that holds each prompt with `((hold:NAME))` until the file `gates/NAME` exists,
    then returns the inner engine's answer. Picklable. `((defect))` raises an error that no engine
    should, `((defect:NAME))` until `gates/NAME` exists."""

    folder: Path
    inner: EngineFactory

    def __call__(self) -> Engine:
        return _GatedEngine(self.folder, self.inner())


class _GatedEngine:
    def __init__(self, folder: Path, inner: Engine) -> None:
        self._folder = folder
        self._inner = inner
        self._in_flight = 0

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        self._in_flight += 1
        try:
            append(self._folder / "calls", f"{request.id}\t{self._in_flight}\t{os.getpid()}-{id(self)}")
            text = request_text(request)
            defect = DEFECT.search(text)
            if defect and not (defect[1] and self._is_open(defect[1])):
                raise ZeroDivisionError("a planted defect")
            held = HOLD.search(text)
            # Another process opens the gate: only polling sees it.
            while held and not self._is_open(held[1]):  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
            return await self._inner.complete(request, timeout_s=timeout_s, deadline=deadline)
        finally:
            self._in_flight -= 1

    async def close(self) -> None:
        await self._inner.close()

    def _is_open(self, gate: str) -> bool:
        return (self._folder / "gates" / gate).exists()


@dataclass(frozen=True, slots=True)
class FieldText:
    """An event's key or id from a template; picklable."""

    template: FieldTemplate

    def __call__(self, event: Event) -> str:
        return self.template.render(event.fields, time_ms=event.time_ms)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Files of JSON lines in, scripted answers, exactly-once files out. Picklable. `follow`: the
    input never ends and includes later files. `program`: runs instead of one question per event; at
    most `queue` events of a key wait for its call. `engine`: replaces the scripted one with
    `delay`. `clock` and `pace`: the operator's."""

    folder: Path
    capacity: int = 8
    ordering: Ordering = "unordered"
    shards: int = 8
    keyed: bool = False
    follow: bool = False
    event_time: bool = False
    window_ms: int | None = None
    program: Program[Any] | None = None
    queue: int = 64
    delay: Delay = field(default_factory=lambda: Fixed(0.005))
    engine: EngineFactory | None = None
    schema: Mapping[str, JSON] | None = None
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(base_s=0.01, max_backoff_s=0.02))
    clock: Clock | None = None
    pace: PollInterval | None = None
    opentelemetry: str | None = None
    flink: FlinkConfig = field(default_factory=FlinkConfig)

    def submit(self) -> RunningJob:
        """Start the job on its own cluster inside this process; needs this process's JVM."""
        port = free_port()
        ports = {"rest.port": str(port), "rest.bind-port": str(port)}
        flink = replace(self.flink, options={**self.flink.options, **ports})
        env = flink_environment(flink)
        source = Files(
            self.folder / "in",
            Format(time=EventTime("at", "unix_ms") if self.event_time else None),
            follow=self.follow,
            every_s=0.05,
        )
        events = file_source(env, source)
        if self.event_time:
            events = with_event_time(events, out_of_orderness_ms=0)
        inferred = self._inferred(events)
        results = inferred.results.map(_Seen(self.folder), Types.PICKLED_BYTE_ARRAY())
        lines = _windows(results, self.window_ms) if self.window_ms else results.map(_Line(), Types.STRING())
        jsonl_sink(lines, JsonlFiles(self.folder / "results"))
        letters = inferred.dead_letters.map(_LetterLine(), Types.STRING())
        jsonl_sink(letters, JsonlFiles(self.folder / "dead-letters"))
        return submit(env, "test", embedded_rest(flink, port))

    def _inferred(self, events: DataStream) -> InferenceStreams:
        call = InferenceSpec(
            engine=GatedEngineFactory(self.folder, self.engine or ScriptedEngineFactory(self.delay)),
            model="scripted",
            prompt=PromptTemplate("{{ text }}"),
            schema=self.schema,
            retry=self.retry,
            opentelemetry=self.opentelemetry,
        )
        shared: dict[str, Any] = {
            "key": FieldText(FieldTemplate("{{ key }}")) if self.keyed else None,
            "capacity": self.capacity,
            "shards": self.shards,
            "event_time": self.event_time,
            "clock": self.clock,
            "pace": self.pace,
        }
        if self.program is None:
            return infer(events, call, ordering=self.ordering, **shared)
        return infer_stateful(events, self.program, call, queue=self.queue, **shared)


class Runs:
    """Runs of one pipeline in one folder."""

    WAIT_S = 180.0

    def __init__(self, folder: Path, *, log_dir: Path, **settings: Any) -> None:
        for name in ("in", "gates", "fed"):
            (folder / name).mkdir(parents=True)
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        flink = FlinkConfig(
            checkpoint_dir=self.checkpoints,
            checkpoint_interval_s=0.2,
            log_dir=log_dir,
            heap_mb=768,
            options=FRESH,
        )
        self.pipeline = Pipeline(folder, flink=flink, **settings)
        self.jobs: list[RunningJob] = []
        self._fed = 0

    def feed(self, events: Iterable[Mapping[str, JSON] | bytes]) -> None:
        """Add a file of events to the input at once."""
        lines = [event if isinstance(event, bytes) else orjson.dumps(event) for event in events]
        name = f"{self._fed:04}.jsonl"
        self._fed += 1
        (self.folder / "fed" / name).write_bytes(b"".join(line + b"\n" for line in lines))
        (self.folder / "fed" / name).rename(self.folder / "in" / name)

    def release(self, gate: str) -> None:
        """Continue the calls that are held by `gate`."""
        (self.folder / "gates" / gate).touch()

    def change(self, **settings: Any) -> None:
        self.pipeline = replace(self.pipeline, **settings)

    def configured(self, *, restore: bool = False, **flink: Any) -> Pipeline:
        if restore:
            flink["restore_from"] = newest_checkpoint(self.checkpoints)
            assert flink["restore_from"] is not None, "there is no complete checkpoint"
        return replace(self.pipeline, flink=replace(self.pipeline.flink, **flink))

    def start(self, *, restore: bool = False, **flink: Any) -> RunningJob:
        self.jobs.append(self.configured(restore=restore, **flink).submit())
        return self.jobs[-1]

    def run(self, **flink: Any) -> None:
        self.finish(self.start(**flink))

    def finish(self, job: RunningJob) -> None:
        """Wait until the job ended by itself, successfully."""
        wait_until(lambda: job.ended() is not None, self.WAIT_S)
        assert job.ended() == "", job.ended()

    def stop(self, job: RunningJob) -> None:
        """Cancel the job and wait until it is gone; its checkpoints stay."""
        until_answered(job.cancel, self.WAIT_S)
        wait_until(lambda: job.ended() is not None, self.WAIT_S)

    def await_checkpoint(self, job: RunningJob, more: int = 1) -> None:
        """Wait until `more` checkpoints that began after this call have completed."""
        # One may be under way: that one does not count.
        target = until_answered(job.checkpoints, self.WAIT_S).completed + more + 1
        wait_until(
            lambda: until_answered(job.checkpoints, self.WAIT_S).completed >= target, timeout_s=self.WAIT_S
        )

    def await_checkpoint_files(self, more: int = 1) -> None:
        seen: set[Path] = set()

        def came() -> bool:
            newest = newest_checkpoint(self.checkpoints)
            seen.update((newest,) if newest is not None else ())
            # The newest before the call does not count, nor one in progress.
            return len(seen) >= more + 2

        wait_until(came, self.WAIT_S)

    def results(self) -> list[dict[str, Any]]:
        """Committed results; those of one key in the order written."""
        parts = sorted(committed_parts(self.folder / "results"), key=lambda part: part.written_ns)
        return [orjson.loads(line) for part in parts for line in part.lines()]

    def dead_letters(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in read_jsonl_sink(self.folder / "dead-letters")]

    def seen(self) -> list[str]:
        """Ids of results in the order emitted by the operator, over all runs, including lost ones."""
        return [line[0] for line in _rows(self.folder / "seen")]

    def calls(self) -> list[tuple[str, int, str]]:
        """Every call: its id, the calls in flight in that engine, the engine."""
        return [(id, int(in_flight), engine) for id, in_flight, engine in _rows(self.folder / "calls")]

    def spawn(self, **flink: Any) -> subprocess.Popen[bytes]:
        """Start a run in its own process with its own JVM."""
        plan = self.folder / "pipeline.pickle"
        plan.write_bytes(pickle.dumps(self.configured(**flink)))
        command = [sys.executable, "-m", "tests.harness.operators", str(plan)]
        return subprocess.Popen(command, cwd=Path(__file__).parents[2])


def until_answered(ask: Callable[[], T], timeout_s: float = Runs.WAIT_S) -> T:
    answers: list[T] = []

    def answered() -> bool:
        with suppress(RestSilent):
            answers.append(ask())
        return bool(answers)

    wait_until(answered, timeout_s)
    return answers[0]


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and all its children at once."""
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    # A child may end by itself meanwhile.
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.suspend()
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    psutil.wait_procs(family)


def append(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (line + "\n").encode())
    finally:
        os.close(file)


@dataclass(frozen=True, slots=True)
class _Seen:
    folder: Path

    def __call__(self, data: bytes) -> bytes:
        append(self.folder / "seen", decode(data).id)
        return data


class _Line:
    def __call__(self, data: bytes) -> str:
        return result_json(decode(data))


class _LetterLine:
    def __call__(self, data: bytes) -> str:
        return dead_letter_json(decode(data))


class _Count(ProcessWindowFunction):
    def process(self, key: int, context: Any, elements: Iterable[bytes]) -> Iterator[str]:
        yield orjson.dumps({"start": context.window().start, "count": sum(1 for _ in elements)}).decode()


def _windows(results: DataStream, window_ms: int) -> DataStream:
    keyed = results.key_by(lambda _: 0, Types.INT())
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(window_ms)))
    return windows.process(_Count(), Types.STRING())


def _rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    job = pickle.loads(Path(sys.argv[1]).read_bytes()).submit()
    wait_until(lambda: job.ended() is not None, timeout_s=600)
    sys.exit(job.ended() or 0)
