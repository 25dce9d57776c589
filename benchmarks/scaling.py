"""A burst on real vLLM on this machine: replicas go from none to two and back, and every event is counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forebay.bench.stream.events import event_lines, fields_of
from forebay.bench.stream.feed import FeedProcess
from forebay.connectors.files.sink import read_jsonl_sink
from forebay.engine.launch import EngineOptions
from forebay.engine.launch.progress import Progress
from forebay.errors import PipelineFailed
from forebay.json_numbers import read_json
from forebay.pipeline.flink_process import FlinkLauncher
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import Plan
from forebay.pipeline.run import run_pipeline
from forebay.pipeline.scaled_engine import ScaledEngine, scaled_engine
from forebay.pipeline.scaling_record import COURSE, read_course, scaling_folder
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.spec import PipelineSpec
from forebay.settings import Settings

MAX_REPLICAS = 2
ID = "forebay_event"


@dataclass(frozen=True, slots=True)
class BurstOptions:
    """The stream: `trickle` events, one per second, from the start of the job; after `quiet_s`
    without events, `burst` events within `burst_s`."""

    trickle: int = 10
    quiet_s: float = 50.0
    burst: int = 600
    burst_s: float = 10.0
    answer_tokens: int = 48
    slo_s: float = 90.0
    longest_s: float = 540.0

    def due_s(self) -> list[float]:
        begin = self.trickle + self.quiet_s
        return [
            *(float(number) for number in range(self.trickle)),
            *(begin + self.burst_s * number / self.burst for number in range(self.burst)),
        ]


def pipeline_document(options: BurstOptions, url: str, folder: Path) -> dict[str, Any]:
    return {
        "name": "scaling",
        "source": {"type": "sse", "url": url, "idle_timeout_s": 3600.0},
        "id": "{{ " + ID + " }}",
        "prompt": "What is this about? {{ text }}",
        "sampling": {"max_tokens": options.answer_tokens, "extra": {"ignore_eos": True}},
        "sink": {"type": "jsonl", "path": str(folder / "results")},
        "checkpoint": {"dir": str(folder / "state"), "interval_s": 2.0},
        # So that all waiting events are counted.
        "capacity": options.burst,
        "scaling": {
            "policy": "deadline",
            "min": 0,
            "max": MAX_REPLICAS,
            "slo_s": options.slo_s,
            "boot_s": 30.0,
            "every_s": 2.0,
            # Approximate speed of one core; corrected by observations.
            "answer_tokens_per_s": 150.0,
            "prompt_tokens_per_s": 1500.0,
        },
    }


@dataclass(frozen=True, slots=True)
class BurstReport:
    """Outcome of the run.

    `levels`: numbers of ready replicas in order. `lost`, `doubled`: events without, and with several, answers
    or dead letters. `cut_off`: events whose request was sent more than once. `first_answer_s`: from the first
    event to the first answer; `burst_done_s`: from the burst's first event to the last answer; `ended_s`:
    from the first event to the end of the run. `course`: each decision.
    """

    events: int
    answered: int
    dead_letters: int
    lost: int
    doubled: int
    cut_off: int
    levels: list[int]
    boots_s: list[float]
    first_answer_s: float
    burst_done_s: float
    ended_s: float
    course: list[dict[str, Any]]

    @property
    def passed(self) -> bool:
        """Whether replicas went from none to one, two and back to none, and every event was answered once, at
        its first call."""
        failed = (self.dead_letters, self.lost, self.doubled, self.cut_off)
        return (
            not any(failed)
            and self.answered == self.events
            and self.levels[:3] == [0, 1, 2]
            and self.levels[-1] == 0
        )

    def document(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


class Watch:
    """Feeds the events once the job runs, and ends the run."""

    def __init__(
        self, options: BurstOptions, feed: FeedProcess, folder: Path, say: Callable[[Snapshot], None]
    ) -> None:
        self._options = options
        self._feed = feed
        self._folder = folder
        self._say = say
        self.begun_s: float | None = None
        self.first_s = self.done_s = 0.0
        self._events = len(options.due_s())

    def __call__(self, now: Snapshot) -> None:
        self._say(now)
        if now.state != "RUNNING":
            return
        now_s = time.monotonic()
        if self.begun_s is None:
            self.begun_s = now_s
            self._feed.load(self._write_events())
        if now.results and not self.first_s:
            self.first_s = now_s - self.begun_s
        if now.results + now.dead_letters >= self._events and not self.done_s:
            self.done_s = now_s - self.begun_s
        if now_s - self.begun_s > self._options.longest_s:
            raise PipelineFailed(f"the replicas were not gone after {self._options.longest_s:.0f} s")

    def enough(self, now: Snapshot) -> bool:
        """Whether all is answered and no replica is left."""
        there = now.scaling
        gone = there is not None and not (there.ready or there.starting or there.draining)
        return bool(self.done_s) and gone

    def _write_events(self) -> Path:
        begin_us = time.time_ns() // 1000
        due_us = [begin_us + round(at_s * 1e6) for at_s in self._options.due_s()]
        ids = [f"event-{number}" for number in range(len(due_us))]
        path = self._folder / "events.txt"
        path.write_bytes(b"".join(event_lines(ids, due_us, fields_of(None, len(ids), 1, "scaling"))))
        return path


OpenScaled = Callable[[PipelineSpec], AbstractContextManager[ScaledEngine]]


def measure_scaling(
    options: BurstOptions,
    settings: Settings,
    folder: Path,
    *,
    say: Callable[[Snapshot], None] = lambda now: None,
    progress: Progress | None = None,
    open_engine: OpenScaled | None = None,
) -> BurstReport:
    """Run the burst; blocks for minutes."""
    with FeedProcess(folder) as feed, FlinkLauncher() as launcher:
        spec = parse_spec(pipeline_document(options, feed.url, folder), base=folder)
        watch = Watch(options, feed, folder, say)
        engine = (
            scaled_engine(spec, EngineOptions(), settings, progress)
            if open_engine is None
            else open_engine(spec)
        )
        plan = Plan(spec, settings, fresh=True)
        last = run_pipeline(plan, engine, watch, enough=watch.enough, launcher=launcher)
    course = read_course(scaling_folder(settings, spec.name, str(spec.checkpoint.dir)) / COURSE)
    rows = [read_json(line) for line in read_jsonl_sink(folder / "results")]
    return report_of(options, rows, last, course, watch)


def report_of(
    options: BurstOptions,
    rows: Sequence[dict[str, Any]],
    last: Snapshot,
    course: list[dict[str, Any]],
    watch: Watch,
) -> BurstReport:
    events = len(options.due_s())
    seen = Counter(row["fields"][ID] for row in rows)
    return BurstReport(
        events=events,
        answered=len(seen),
        dead_letters=last.dead_letters,
        lost=events - len(seen) - last.dead_letters,
        doubled=sum(count > 1 for count in seen.values()),
        cut_off=sum(row["attempts"] != 1 for row in rows),
        levels=levels_of(course),
        boots_s=[took_s for line in course for took_s in line["booted_s"]],
        first_answer_s=round(watch.first_s, 1),
        burst_done_s=round(watch.done_s - options.trickle - options.quiet_s, 1),
        ended_s=round(time.monotonic() - (watch.begun_s or 0.0), 1),
        course=course,
    )


def levels_of(course: Sequence[dict[str, Any]]) -> list[int]:
    """Numbers of ready replicas in order, without repeats in a row."""
    found: list[int] = []
    for line in course:
        if not found or found[-1] != line["ready"]:
            found.append(line["ready"])
    return found
