"""Measures a pipeline with default limits on an engine that becomes 10 and 50 times slower, and
fast again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from forebay.connectors.files.sink import read_jsonl_sink
from forebay.json_numbers import read_json
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import Plan
from forebay.pipeline.run import run_pipeline
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.spec import PipelineSpec
from forebay.settings import Settings
from forebay.testing.replica import ReplicaProcess, ReplicaScript, WorkReport, fetch_work, set_speed
from forebay.testing.script import Fixed, Mixture

SPEEDS = (1.0, 1 / 10, 1 / 50, 1 / 10, 1.0)
LENGTHS_S = ((0.5, 0.3), (0.3, 0.5), (0.2, 0.9))
"""Shares of the answers, and their seconds from first token to end at speed 1: 0.48 s on average, half a
minute at 1/50."""
GOOD = 0.9
MAX_THROWN_AWAY = 0.03


def _script(*, times: float = 1.0, streams: bool = True) -> ReplicaScript:
    return ReplicaScript(
        delay=Fixed(0.05 * times),
        decode=Mixture(tuple((share, seconds * times) for share, seconds in LENGTHS_S)),
        chunks=16,
        slots=16,
        streams=streams,
        absent=() if streams else ("/metrics",),
    )


REPLICAS = {
    "streaming": _script(),
    "whole": _script(streams=False),
    "long": _script(times=3.0),
    "long whole": _script(times=3.0, streams=False),
    "shared": replace(_script(), slots=64, crowding=0.1),
    "shared whole": replace(_script(streams=False), slots=64, crowding=0.1),
}
"""`whole`: reports no metrics, and each answer comes in one piece."""


@dataclass(frozen=True, slots=True)
class SlowdownOptions:
    """Each speed lasts `step_s`; its first `settle_s` do not count for goodput."""

    replica: str = "streaming"
    step_s: float = 120.0
    settle_s: float = 20.0
    capacity: int = 64


@dataclass(frozen=True, slots=True)
class Step:
    """Figures at one speed.

    `goodput`: useful work of the replica divided by possible work, after `settle_s`; `answers_per_s`
    likewise. `calls`, `thrown_away` (the connection was closed before the answer was complete) and `retries`
    cover the whole step. `held_mean` and `held_max`: requests running or waiting at the replica.
    """

    speed: float
    goodput: float
    answers_per_s: float
    calls: int
    thrown_away: int
    retries: int
    held_mean: float
    held_max: int


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    work: WorkReport
    retries: int


class Course:
    """Steps a running pipeline through the speeds; receives every snapshot of it."""

    def __init__(self, options: SlowdownOptions, url: str, note: Callable[[str], None]) -> None:
        self._options = options
        self._url = url
        self._note = note
        self._begun_s: float | None = None
        self.samples: list[list[Sample]] = []

    def watch(self, now: Snapshot) -> None:
        if self._begun_s is None:
            if not now.results and not now.dead_letters and not now.retries:
                return
            self._begun_s = now.elapsed_s
        passed_s = now.elapsed_s - self._begun_s
        sample = Sample(passed_s, fetch_work(self._url), now.retries)
        if self.samples:
            self.samples[-1].append(sample)
        if passed_s >= len(self.samples) * self._options.step_s and len(self.samples) < len(SPEEDS):
            speed = SPEEDS[len(self.samples)]
            set_speed(self._url, speed)
            self._note(f"{self._options.replica} at speed {speed:g}")
            self.samples.append([sample])

    def over(self, _: Snapshot) -> bool:
        return bool(self.samples) and self.samples[-1][-1].at_s >= len(SPEEDS) * self._options.step_s


def step_of(speed: float, samples: list[Sample], settle_s: float) -> Step:
    first, last = samples[0], samples[-1]
    settled = next((s for s in samples if s.at_s >= first.at_s + settle_s), last)
    could_s = last.work.could_s - settled.work.could_s
    span_s = max(last.at_s - settled.at_s, 1e-9)
    held = [sample.work.waiting + sample.work.running for sample in samples[1:] or samples]
    return Step(
        speed=speed,
        goodput=round((_useful_s(last) - _useful_s(settled)) / could_s, 4) if could_s else 0.0,
        answers_per_s=round((last.work.answers - settled.work.answers) / span_s, 3),
        calls=last.work.calls - first.work.calls,
        thrown_away=last.work.aborted - first.work.aborted,
        retries=last.retries - first.retries,
        held_mean=round(fmean(held), 1),
        held_max=max(held),
    )


def _useful_s(sample: Sample) -> float:
    return sample.work.spent_s - sample.work.wasted_s


def measure_slowdown(
    options: SlowdownOptions, work: Path, settings: Settings, note: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    with ReplicaProcess(REPLICAS[options.replica]) as replica:
        spec = _spec(options, work, replica.url)
        course = Course(options, replica.url, note)
        run_pipeline(Plan(spec, settings), nullcontext(()), course.watch, enough=course.over)
        end = fetch_work(replica.url)
    steps = [
        step_of(speed, samples, options.settle_s)
        for speed, samples in zip(SPEEDS, course.samples, strict=True)
    ]
    ids = [read_json(line)["id"] for line in read_jsonl_sink(work / "results")]
    causes = Counter(read_json(line)["cause"] for line in read_jsonl_sink(work / "results-dead-letters"))
    thrown_away = end.aborted / max(1, end.calls)
    return {
        **asdict(options),
        "steps": [asdict(step) for step in steps],
        "results": len(ids),
        "doubled": len(ids) - len(set(ids)),
        "dead_letters": dict(causes),
        "calls": end.calls,
        "thrown_away": end.aborted,
        "thrown_away_share": round(thrown_away, 4),
        "passed": min(step.goodput for step in steps) >= GOOD
        and thrown_away <= MAX_THROWN_AWAY
        and not causes
        and len(ids) == len(set(ids)),
    }


def _spec(options: SlowdownOptions, work: Path, url: str) -> PipelineSpec:
    return parse_spec(
        {
            "name": "slowdown",
            "source": {"type": "generator", "paced": False},
            "prompt": "In one word: what is this about? {{ text }}",
            "engine": {"url": url, "model": "fake"},
            "capacity": options.capacity,
            "sampling": {"max_tokens": 16, "extra": {"ignore_eos": True}},
            "sink": {"type": "jsonl", "path": "results"},
        },
        base=work,
    )
