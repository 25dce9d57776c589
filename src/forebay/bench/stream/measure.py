"""Measure a pipeline end to end.

    run = measure_stream(StreamOptions(pipeline=Path("topics.yaml"), load=EventLoad(events=300)))
    figures = stream_figures(run, options.slo)

Several loads over one warm pipeline:

    with StreamSession(options) as session:
        session.warm_up()
        runs = [session.measure(load) for load in loads]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import orjson

from forebay.bench.load.plan import fresh_nonce
from forebay.bench.load.schedules import Constant
from forebay.bench.presets.other_programs import processor_use
from forebay.bench.resources import ProcessResources
from forebay.bench.sampling import Sampler
from forebay.bench.stream.book import EventBook
from forebay.bench.stream.engines import Engines
from forebay.bench.stream.events import due_offsets, event_lines, fields_of, read_data
from forebay.bench.stream.feed import now_us
from forebay.bench.stream.feed_process import FeedProcess
from forebay.bench.stream.flink_signals import FlinkSignals, checkpoints_between
from forebay.bench.stream.kills import Kill, Killer
from forebay.bench.stream.options import EventLoad, StreamOptions
from forebay.bench.stream.pipeline import Places, asked_of, measured_document, read_pipeline
from forebay.bench.stream.process import RunProcess
from forebay.bench.stream.records import StreamRun
from forebay.bench.stream.sinks import file_clock_s
from forebay.engine.launch.spec import usable_cores
from forebay.errors import LaunchError, SettingError
from forebay.flink.tls_keys import tls_keys
from forebay.settings import load_settings

Note = Callable[[str], None]

START_TIMEOUT_S = 600.0
"""The longest wait for the first committed result; a local engine starts meanwhile."""
LEAD_S = 0.5
LEAD_S_PER_EVENT = 50e-6
"""So long before the first event of a load its file is written, and read by the feed."""
POLL_S = 0.1
LEAST_WARM_PER_S = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load has come. `events`: of the load; `due`: so far; `done`: committed, or given up."""

    passed_s: float
    events: int
    due: int
    done: int
    failed: int


OnProgress = Callable[[Progress], None]


class RunResources:
    """A `Source` of the processor and memory of the pipeline's processes, whichever they are by now, as
    `run_...`, and of those named (see `ProcessResources`)."""

    def __init__(self, run: RunProcess, named: Mapping[str, int]) -> None:
        self._run = run
        self._processes = dict(named)
        self._resources = ProcessResources(self._processes)

    def __call__(self) -> Mapping[str, float]:
        self._processes["run"] = self._run.pid
        return self._resources()


class StreamSession:
    """A pipeline that runs, with its feed and its engine, for as long as the block.

    Entering starts everything and blocks until the pipeline's first result is committed. Raises
    `SettingError` for a pipeline that is wrong or cannot be measured, and `LaunchError` where it does not
    start. Nothing that was started outlives the block. To be entered on a thread that lives as long.
    """

    def __init__(
        self,
        options: StreamOptions,
        *,
        note: Note = lambda _: None,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        self._options = options
        self._note = note
        self._on_progress = on_progress
        self._opened = ExitStack()
        self._sent = 0
        self._loads = 0
        self._sent_of: dict[Path, tuple[int, int]] = {}
        self._book: EventBook

    def __enter__(self) -> StreamSession:
        options = self._options
        self.spec = read_pipeline(options.pipeline, options.settings)
        self._data = None if options.load.data is None else read_data(options.load.data)
        try:
            self._open()
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def _open(self) -> None:
        settings = load_settings()
        folder = Path(self._opened.enter_context(TemporaryDirectory(prefix="forebay-stream-")))
        self._folder = folder
        self.engines = self._opened.enter_context(
            Engines(self.spec, tuple(self._options.engine), settings, note=self._note)
        )
        self._feed = self._opened.enter_context(FeedProcess(folder))
        places = Places(self._feed.url, folder)
        pipeline = folder / "pipeline.yaml"
        # JSON is YAML.
        pipeline.write_bytes(orjson.dumps(measured_document(self.spec, places)))
        self._book = EventBook(places)
        self._flink = FlinkSignals(places.state, tls_keys(settings.run / "flink" / "keys"))
        self.run = self._opened.enter_context(RunProcess(pipeline, self.engines.urls, folder))
        self._note("starting the pipeline")
        self.run.start()
        first = EventLoad(schedule=Constant(1.0), events=1, data=self._options.load.data, seed=-1)
        self._through(first, START_TIMEOUT_S, "the first event")
        if self.run.await_archive():
            self._note("this machine's first run: an archive of the JVM's classes was made")

    def warm_up(self) -> None:
        """Let `warm_events` through; blocks until they are committed. Raises `LaunchError` where they are
        not, and `SettingError` where the first of them become dead letters."""
        load, count = self._options.load, self._options.warm_events
        offsets = due_offsets(load)
        rate_per_s = max(LEAST_WARM_PER_S, len(offsets) / offsets[-1] if offsets[-1] > 0 else 0.0)
        self._note(f"warming up: {count} events")
        warm = EventLoad(schedule=Constant(min(rate_per_s, 1e6)), events=count, data=load.data, seed=-1)
        self._through(warm, count / rate_per_s + max(START_TIMEOUT_S, self._options.patience_s), "warming up")

    def measure(self, load: EventLoad, kills: Sequence[Kill] = ()) -> StreamRun:
        """Let the load through, and give what was seen of each event; blocks until all are committed, or
        `patience_s` after the last was due. After Ctrl-C the run is what came until then, not `complete`;
        where the pipeline ended, it has the reason as its `failure`. `kills` are made meanwhile."""
        with Sampler(self._sources()) as sampler:
            before, jvm = processor_use(), self.run.jvm()
            self.engines.used_s()
            resent = self._resent(load)
            began_us, ids, due_us = self._offer(load)
            complete, failure = True, None
            killer = Killer(self.run, self.engines, kills, began_us, self._note)
            try:
                until_us = due_us[-1] + round(self._options.patience_s * 1e6)
                self._await(began_us, ids, due_us, until_us, killer)
            except KeyboardInterrupt:
                complete = False
            except LaunchError as error:
                complete, failure = False, str(error)
            ended_us = now_us()
            after = processor_use()
            # What was killed is gone from the sum of what lives.
            after = replace(after, own_s=after.own_s + killer.used_s)
        engine_cores = self.engines.used_s() / max(1e-9, after.at_s - before.at_s)
        begin = datetime.fromtimestamp(began_us / 1e6, timezone.utc).isoformat()
        if not complete:
            due_us = [each for each in due_us if each <= ended_us]
            ids = ids[: len(due_us)]
        return StreamRun(
            began_at=begin,
            duration_s=(ended_us - began_us) / 1e6,
            asked=self._asked(load),
            events=self._book.records(ids, due_us, self._emitted(), began_us),
            checkpoints=checkpoints_between(self._flink.checkpoints, began_us, ended_us),
            samples=sampler.samples(begin),
            kills=tuple(killer.killed),
            planned_kills=len(kills),
            resent=resent,
            earlier_doubled=self._book.earlier_doubled,
            strangers=self._book.strangers,
            resolution_s=file_clock_s(),
            # What a JVM had used that ended by itself is not known.
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
        """Wait until the last load's events all have a result or a dead letter; False where they have not
        within `timeout_s`."""
        return self._await(now_us(), self._last, (), now_us() + round(timeout_s * 1e6))

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
            "pipeline": asked_of(self.spec),
        }

    def _through(self, load: EventLoad, patience_s: float, what: str) -> None:
        began_us, ids, due_us = self._offer(load)
        if not self._await(began_us, ids, due_us, now_us() + round(patience_s * 1e6)):
            raise LaunchError(
                f"{what}: not committed within {patience_s:.0f} s; the run said: {self.run.said()}"
            )
        failed = self._book.failures(ids)
        if failed:
            raise SettingError(
                f"{what}: {len(failed)} of {len(ids)} events became dead letters, such as by {failed[0]}; "
                "the events' fields come from --data, or are those of made-up posts (id, user, text)"
            )

    def _resent(self, load: EventLoad) -> int:
        """How many events of a load are lines of a file that were sent before."""
        if load.data is None or load.data not in self._sent_of:
            return 0
        lines, sent = self._sent_of[load.data]
        return sum(index % lines < sent for index in range(load.events))

    def _offer(self, load: EventLoad) -> tuple[int, list[str], list[int]]:
        """Have the load's events come; gives when it begins, their ids, and when they are due."""
        offsets = due_offsets(load)
        data = self._data if load.data == self._options.load.data else None
        if data is None and load.data is not None:
            data = read_data(load.data)
        ids = [f"e{number}" for number in range(self._sent, self._sent + len(offsets))]
        began_us = now_us() + round((LEAD_S + LEAD_S_PER_EVENT * len(offsets)) * 1e6)
        due_us = [began_us + round(offset * 1e6) for offset in offsets]
        path = self._folder / f"events-{self._loads}.txt"
        path.write_bytes(
            b"".join(event_lines(ids, due_us, fields_of(data, len(ids), load.seed, fresh_nonce())))
        )
        if data is not None and load.data is not None:
            _, sent = self._sent_of.get(load.data, (0, 0))
            self._sent_of[load.data] = (len(data), max(sent, len(ids)))
        self._sent += len(ids)
        self._last = ids
        self._loads += 1
        self._book.expect(ids)
        self._feed.load(path)
        return began_us, ids, due_us

    def _await(
        self,
        began_us: int,
        ids: Sequence[str],
        due_us: Sequence[int],
        until_us: int,
        killer: Killer | None = None,
    ) -> bool:
        """Block until all of the events have a result or a dead letter, at most `until_us`."""
        due = 0
        while True:
            if killer is not None:
                killer.look()
            self._book.look()
            done, failed = self._book.done(ids)
            now = now_us()
            while due < len(due_us) and due_us[due] <= now:
                due += 1
            self._on_progress(Progress((now - began_us) / 1e6, len(ids), due, done, failed))
            if done >= len(ids) or now >= until_us:
                return done >= len(ids)
            self.run.check()
            self._feed.check()
            time.sleep(POLL_S)


def measure_stream(
    options: StreamOptions, *, note: Note = lambda _: None, on_progress: OnProgress = lambda _: None
) -> StreamRun:
    """Run the pipeline under its load, and give what was seen of each event; blocks.

    Raises as `StreamSession` does.
    """
    with StreamSession(options, note=note, on_progress=on_progress) as session:
        session.warm_up()
        return session.measure(options.load)
