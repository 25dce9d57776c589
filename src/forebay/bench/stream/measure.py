"""Measures a pipeline end to end, with one warm session for several loads."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import orjson

from forebay.bench.load.schedules import Constant, fresh_nonce
from forebay.bench.resources import ProcessResources, processor_use
from forebay.bench.sampling import Sampler
from forebay.bench.stream.book import EventBook, Sent, StreamProgress, file_clock_s, least_span_s
from forebay.bench.stream.events import (
    EventLoad,
    StreamOptions,
    due_offsets,
    event_lines,
    fields_of,
    read_data,
)
from forebay.bench.stream.feed import FeedProcess, now_us
from forebay.bench.stream.flink_signals import FlinkSignals, checkpoints_between
from forebay.bench.stream.kills import Kill, Killer, since_kills
from forebay.bench.stream.pipeline import Places, asked_of, measured_document, read_pipeline, state_folder
from forebay.bench.stream.process import Engines, RunProcess
from forebay.bench.stream.records import StreamRun
from forebay.bench.stream.result_book import ManyToOne, ResultBook, book_of
from forebay.engine.launch.spec import usable_cores
from forebay.errors import LaunchError, RecordError, SettingError
from forebay.flink.jvm import class_archive
from forebay.flink.rest import tls_keys
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import open_store
from forebay.settings import load_settings

Note = Callable[[str], None]

START_TIMEOUT_S = 600.0
"""Includes the start of a local engine."""
LEAD_S = 0.5
LEAD_S_PER_EVENT = 50e-6
"""Time before the first event, to write the file and let the feed read it."""
POLL_S = 0.1
MIN_WARM_PER_S = 1.0


OnProgress = Callable[[float, StreamProgress], None]


class RunResources:
    def __init__(self, run: RunProcess, named: Mapping[str, int]) -> None:
        self._run = run
        self._processes = dict(named)
        self._resources = ProcessResources(self._processes)

    def __call__(self) -> Mapping[str, float]:
        self._processes["run"] = self._run.pid
        return self._resources()


class StreamSession:
    """A running pipeline with its feed and engine, for the length of the block.

    Entering blocks until its first result is committed (with windows, until a checkpoint holds the first
    event). Raises `SettingError` and `LaunchError`. Enter it on a thread that lives as long.
    """

    def __init__(
        self,
        options: StreamOptions,
        *,
        note: Note = lambda _: None,
        on_progress: OnProgress = lambda _, __: None,
    ) -> None:
        self._options = options
        self._note = note
        self._on_progress = on_progress
        self._opened = ExitStack()
        self._sent = 0
        self._loads = 0
        self._doubles = 0
        self._sent_of: dict[Path, tuple[int, int]] = {}
        self._book: EventBook

    def __enter__(self) -> StreamSession:
        options = self._options
        self.spec = read_pipeline(options.pipeline, options.settings)
        self._data = None if options.load.data is None else read_data(options.load.data)
        self._span_s = _span_s(self.spec, options.load)
        try:
            self._open()
        except BaseException:
            self._note("stopping")
            with self._opened:
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Stopping may take a minute: show that Ctrl-C was received.
        self._note("stopping the pipeline")
        try:
            self.run.stop()
            self._book.look()
            late = self._book.doubles - self._doubles
            if late > 0:
                self._note(
                    f"{late} more results or dead letters came after the last load; its figures do not "
                    "count them, and their events have more than one"
                )
        finally:
            # Errors here and in the block are passed to the clean-up.
            self._opened.__exit__(*sys.exc_info())

    def _open(self) -> None:
        settings = load_settings()
        folder = Path(self._opened.enter_context(TemporaryDirectory(prefix="forebay-stream-")))
        self._folder = folder
        self.engines = self._opened.enter_context(
            Engines(
                self.spec,
                tuple(self._options.engine),
                settings,
                later=self._options.engine_later,
                note=self._note,
            )
        )
        self._feed = self._opened.enter_context(FeedProcess(folder))
        store = self._opened.enter_context(state_folder(self._options.state, self._note))
        places = Places(self._feed.url, folder, store)
        pipeline = folder / "pipeline.yaml"
        # JSON is YAML.
        pipeline.write_bytes(orjson.dumps(measured_document(self.spec, places)))
        self._book = book_of(places, self.spec)
        self._key = self.spec.key_template()
        self._flink = FlinkSignals(open_store(places.state).read, tls_keys(settings.run / "flink" / "keys"))
        self.run = self._opened.enter_context(RunProcess(pipeline, self.engines.urls, folder))
        # Otherwise a machine's first run makes it while it is measured.
        planner = self.spec.event_time is not None
        class_archive(settings.java, planner=planner).make(settings.child_environment())
        self._note("starting the pipeline")
        self.run.start()
        first = EventLoad(schedule=Constant(1.0), events=1, data=self._options.load.data, seed=-1)
        self._through(first, START_TIMEOUT_S, "the first event")

    def warm_up(self) -> None:
        """Process `warm_events`; blocks. Raises `LaunchError` if they are not committed."""
        load, count = self._options.load, self._options.warm_events
        offsets = due_offsets(load)
        rate_per_s = max(MIN_WARM_PER_S, len(offsets) / offsets[-1] if offsets[-1] > 0 else 0.0)
        # At least one window is over then, and a further event has closed it.
        count = max(count, math.ceil(self._span_s * rate_per_s) + 1 if self._span_s else 0)
        self._note(f"warming up: {count} events")
        warm = EventLoad(schedule=Constant(min(rate_per_s, 1e6)), events=count, data=load.data, seed=-1)
        self._through(warm, count / rate_per_s + max(START_TIMEOUT_S, self._options.patience_s), "warming up")

    def measure(self, load: EventLoad, kills: Sequence[Kill] = ()) -> StreamRun:
        """Process a load; blocks until all is committed, or `patience_s` after the last was due.

        After Ctrl-C the run is not `complete`. `failure`: why the pipeline ended.
        """
        with Sampler(self._sources()) as sampler:
            before, jvm = processor_use(), self.run.jvm()
            self.engines.used_s()
            resent = self._resent(load)
            began_us, last_us = self._offer(load)
            complete, failure = True, None
            killer = Killer(self.run, self.engines, kills, began_us, self._note)
            try:
                until_us = last_us + round(self._options.patience_s * 1e6)
                self._await(began_us, until_us, killer)
            except KeyboardInterrupt:
                complete = False
            except LaunchError as error:
                complete, failure = False, str(error)
            ended_us = now_us()
            after = processor_use()
            # Killed processes are missing from the sum over living ones.
            after = replace(after, own_s=after.own_s + killer.used_s)
        engine_cores = self.engines.used_s() / max(1e-9, after.at_s - before.at_s)
        begin = datetime.fromtimestamp(began_us / 1e6, timezone.utc).isoformat()
        book = self._book
        self._doubles = book.doubles
        many = book if isinstance(book, ResultBook) else None
        return StreamRun(
            began_at=begin,
            duration_s=(ended_us - began_us) / 1e6,
            asked=self._asked(load),
            events=book.records(self._emitted(), began_us, ended_us),
            results=None if many is None else many.results(began_us, ended_us),
            countable=many is None or many.countable,
            left_open=0 if many is None else many.left_open,
            checkpoints=checkpoints_between(self._flink.checkpoints, began_us, ended_us),
            samples=sampler.samples(begin),
            kills=tuple(killer.killed),
            planned_kills=len(kills),
            resent=resent,
            earlier_doubled=book.earlier_doubled,
            strangers=book.strangers,
            resolution_s=file_clock_s(),
            # The use of a JVM that ended by itself is unknown.
            others_cores=(
                max(0.0, before.others_cores(after) - engine_cores)
                if killer.killed or jvm == self.run.jvm()
                else None
            ),
            cores=len(usable_cores()),
            complete=complete,
            failure=failure,
        )

    def settle(self, timeout_s: float) -> bool:
        """Block until all results of the last load are committed; False after `timeout_s`."""
        with self._checkpoints_seen():
            return self._await(now_us(), now_us() + round(timeout_s * 1e6))

    def _emitted(self) -> Mapping[str, tuple[int, int]]:
        try:
            return self._feed.report()
        except LaunchError:
            return {}

    def _sources(self) -> list[Callable[[], Mapping[str, float]]]:
        named = {"feed": self._feed.pid, **self.engines.processes, **self._options.processes}
        return [self._flink, *self.engines.signals(), RunResources(self.run, named)]

    def _asked(self, load: EventLoad) -> dict[str, Any]:
        return {
            "schedule": load.schedule.asked(),
            "events": load.events,
            "seed": load.seed,
            "data": "posts" if load.data is None else load.data.name,
            "warm_events": self._options.warm_events,
            "pipeline": {**asked_of(self.spec), **({} if self._options.state is None else {"state": "s3"})},
        }

    def _through(self, load: EventLoad, patience_s: float, what: str) -> None:
        began_us, _ = self._offer(load)
        with self._checkpoints_seen():
            there = self._await(began_us, now_us() + round(patience_s * 1e6))
        if not there:
            raise LaunchError(
                f"{what}: not committed within {patience_s:.0f} s; its output: {self.run.output()}"
            )
        failed = self._book.failures()
        if failed:
            raise SettingError(
                f"{what}: {len(failed)} of {load.events} events became dead letters, for example: "
                f"{failed[0]}; events have the fields of --data, or of made-up posts (id, user, text)"
            )

    def _resent(self, load: EventLoad) -> int:
        if load.data is None or load.data not in self._sent_of:
            return 0
        lines, sent = self._sent_of[load.data]
        return sum(index % lines < sent for index in range(load.events))

    def _offer(self, load: EventLoad) -> tuple[int, int]:
        offsets = due_offsets(load)
        data = self._data if load.data == self._options.load.data else None
        if data is None and load.data is not None:
            data = read_data(load.data)
        ids = [f"e{number}" for number in range(self._sent, self._sent + len(offsets))]
        began_us = now_us() + round((LEAD_S + LEAD_S_PER_EVENT * len(offsets)) * 1e6)
        due_us = [began_us + round(offset * 1e6) for offset in offsets]
        path = self._folder / f"events-{self._loads}.txt"
        sent: list[Sent] = []
        fields = self._noted(fields_of(data, len(ids), load.seed, fresh_nonce()), ids, due_us, sent)
        path.write_bytes(b"".join(event_lines(ids, due_us, fields)))
        if data is not None and load.data is not None:
            _, lines = self._sent_of.get(load.data, (0, 0))
            self._sent_of[load.data] = (len(data), max(lines, len(ids)))
        self._sent += len(ids)
        self._loads += 1
        self._book.expect(sent)
        self._feed.load(path)
        return began_us, due_us[-1]

    def _noted(
        self, fields: Iterable[dict[str, Any]], ids: Sequence[str], due_us: Sequence[int], sent: list[Sent]
    ) -> Iterator[dict[str, Any]]:
        keyed = isinstance(self._book, ResultBook)
        for id, at_us, own in zip(ids, due_us, fields, strict=True):
            sent.append(Sent(id, at_us, self._key_of(own, at_us) if keyed else None))
            yield own

    def _key_of(self, fields: Mapping[str, Any], due_us: int) -> str | None:
        try:
            return None if self._key is None else self._key.render(fields, time_ms=due_us // 1000)
        except RecordError:
            return None

    def _checkpoints_seen(self) -> AbstractContextManager[object]:
        return Sampler([self._flink]) if isinstance(self._book, ResultBook) else nullcontext()

    def _checkpoints_us(self) -> list[int]:
        # A copy: another thread appends.
        seen = list(self._flink.checkpoints.copy().values())
        return [each["trigger_timestamp"] * 1000 for each in seen if each["status"] == "COMPLETED"]

    def _await(self, began_us: int, until_us: int, killer: Killer | None = None) -> bool:
        while True:
            if killer is not None:
                killer.look()
            self._book.look()
            now = now_us()
            self._on_progress((now - began_us) / 1e6, self._book.progress(now))
            killed = () if killer is None else killer.killed
            over = self._book.over(since_kills(self._checkpoints_us(), killed, began_us), now)
            if over or now >= until_us:
                return over
            self.run.check()
            self._feed.check()
            time.sleep(POLL_S)


def _span_s(spec: PipelineSpec, load: EventLoad) -> float:
    kind = ManyToOne.of(spec)
    if kind is None or kind.windows is None:
        return 0.0
    span_s = least_span_s(kind.windows, kind.late_s) or 0.0
    length_s = due_offsets(load)[-1]
    if length_s < span_s:
        raise SettingError(
            f"no window may end in a load of {length_s:.3g} s: a new one begins every "
            f"{kind.windows.step_ms / 1000:g} s, and event time is {kind.late_s:g} s behind the events; set "
            f"--seconds {math.ceil(span_s * 1.1)} or more, or shorter windows, such as --set "
            "application.size_s=5"
        )
    return span_s
