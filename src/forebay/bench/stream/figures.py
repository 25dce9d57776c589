"""The figures of a pipeline's run, from its records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forebay.bench.metrics import Distribution, distribution
from forebay.bench.statistics import present
from forebay.bench.stream.lag import Slope, lag_curve, lag_slope
from forebay.bench.stream.options import EventSlo, Until
from forebay.bench.stream.records import EventRecord, StreamRun

UNTIL: tuple[Until, ...] = ("answered", "committed")
WATERMARK_DELAY = "watermark_delay_s"

STAGES = {
    "source": ("due_s", "emitted_s", "until the feed wrote it"),
    "read": ("emitted_s", "read_s", "at the source"),
    "flink": ("read_s", "accepted_s", "in Flink, until the operator took it"),
    "slot": ("accepted_s", "sent_s", "for a slot and room at the engine"),
    "prefill": ("sent_s", "first_token_s", "queue and prefill at the engine"),
    "decode": ("first_token_s", "answered_s", "decode"),
    "release": ("answered_s", "left_s", "until the answer left the operator"),
    "commit": ("left_s", "committed_s", "for the commit"),
}
"""Stages of an event's latency: the moments at their ends, and what was waited for."""
WINDOW = "window"
RESULT_STAGES = {
    WINDOW: ("due_s", "emitted_s", "until its window was found to be over, or its detector gave it"),
    **{name: STAGES[name] for name in STAGES if name not in ("source", "read")},
}
"""The same for a result that stands for many events."""


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """The figures of a run. Distributions are in seconds.

    If results stand for many events, they are counted and timed in place of events; `miscounted` of them
    stand for a wrong number of events.

    `offered`: events that were due. `committed`: those with a result in the sink; `failed`: with a dead
    letter; `lost`: with neither; `doubled`: with more than one of them. `offered_per_s`: over the time in
    which they were due. `answered_per_s`, `committed_per_s`: from the first due event to the last answer or
    commit. `goodput`: share of offered events that met the objective; `good_per_s`: their rate; None without
    an objective.

    `latency`: from the event's own time to `answered` and to `committed`. `stages`: by the names of `STAGES`.
    `lag` of `answered` and `committed`: how fast the number of due and unfinished events grew; None if there
    were too few. `most_lag`: its maximum. `checkpoint`: distributions of `duration_s`, `state_bytes` and
    `written_bytes`. `watermark_delay`: of its samples; None without event time. `samples`: the distribution
    of each of the run's samples.
    """

    offered: int
    committed: int
    failed: int
    lost: int
    doubled: int
    duration_s: float
    offered_per_s: float
    answered_per_s: float
    committed_per_s: float
    prompt_tokens: int
    output_tokens: int
    goodput: float | None = None
    good_per_s: float | None = None
    latency: Mapping[str, Distribution] = field(default_factory=dict)
    stages: Mapping[str, Distribution] = field(default_factory=dict)
    lag: Mapping[str, Slope | None] = field(default_factory=dict)
    most_lag: Mapping[str, int] = field(default_factory=dict)
    checkpoints: int = 0
    failed_checkpoints: int = 0
    checkpoint: Mapping[str, Distribution] = field(default_factory=dict)
    watermark_delay: Distribution | None = None
    samples: Mapping[str, Distribution] = field(default_factory=dict)
    miscounted: int = 0


def moment_s(event: EventRecord, name: str) -> float | None:
    value: float | None = getattr(event, name)
    return value


def stage_s(event: EventRecord, name: str) -> float | None:
    """The seconds of one of the `STAGES` or `RESULT_STAGES`; None if unknown."""
    begin, end, _ = STAGES.get(name) or RESULT_STAGES[name]
    began_s, ended_s = moment_s(event, begin), moment_s(event, end)
    return None if began_s is None or ended_s is None else ended_s - began_s


def stages_of(run: StreamRun) -> Mapping[str, tuple[str, str, str]]:
    return STAGES if run.results is None else RESULT_STAGES


def latency_s(event: EventRecord, until: Until) -> float | None:
    """From an event's own time until it was answered, or committed; None if it was not."""
    ended_s = event.answered_s if until == "answered" else event.committed_s
    return None if ended_s is None or not event.committed else ended_s - event.due_s


def is_good(event: EventRecord, slo: EventSlo) -> bool:
    took_s = latency_s(event, slo.until)
    return took_s is not None and took_s <= slo.within_s


def lag_times(run: StreamRun) -> tuple[list[float], list[float]]:
    """Sorted times at which events were due, and were answered, for the lag. Dead letters are excluded: they
    are never answered, and not behind either."""
    events = [event for event in run.followed if event.error is None or event.committed]
    return (
        sorted(event.due_s for event in events),
        sorted(event.answered_s for event in events if event.answered_s is not None),
    )


def stream_figures(run: StreamRun, slo: EventSlo | None = None) -> StreamFigures:
    events = run.followed
    due_s = sorted(event.due_s for event in events)
    awaited_s = lag_times(run)[0]
    done_s = {
        "answered": sorted(event.answered_s for event in events if event.answered_s is not None),
        "committed": sorted(event.committed_s for event in events if event.committed_s is not None),
    }
    begin_s = due_s[0] if due_s else 0.0
    good = None if slo is None else sum(is_good(event, slo) for event in events)
    good_per_s = None if good is None else _per_second(good, begin_s, done_s["committed"])
    latency: dict[str, list[float]] = {
        until: present(latency_s(event, until) for event in events) for until in UNTIL
    }
    stages = {name: present(stage_s(event, name) for event in events) for name in stages_of(run)}
    done = [each for each in run.checkpoints if each.completed]
    delays = present(sample.values.get(WATERMARK_DELAY) for sample in run.samples)
    return StreamFigures(
        offered=len(events),
        committed=sum(event.committed for event in events),
        failed=sum(event.error is not None and not event.committed for event in events),
        lost=sum(event.lost for event in events),
        doubled=sum(event.doubled for event in events),
        duration_s=run.duration_s,
        offered_per_s=_per_second(len(due_s), 0.0, due_s),
        answered_per_s=_per_second(len(done_s["answered"]), begin_s, done_s["answered"]),
        committed_per_s=_per_second(len(done_s["committed"]), begin_s, done_s["committed"]),
        prompt_tokens=sum(event.prompt_tokens for event in events),
        output_tokens=sum(event.completion_tokens for event in events),
        goodput=good / len(events) if good is not None and events else None,
        good_per_s=good_per_s,
        latency=_distributions(latency),
        stages=_distributions(stages),
        lag={until: lag_slope(awaited_s, done_s[until]) for until in UNTIL},
        most_lag={
            until: max((lag for _, lag in lag_curve(awaited_s, done_s[until])), default=0) for until in UNTIL
        },
        checkpoints=len(done),
        failed_checkpoints=len(run.checkpoints) - len(done),
        checkpoint=_distributions(
            {
                "duration_s": [each.duration_s for each in done],
                "state_bytes": [float(each.state_bytes) for each in done],
                "written_bytes": [float(each.written_bytes) for each in done],
            }
        ),
        watermark_delay=distribution(delays),
        samples=_distributions(_samples(run)),
        miscounted=sum(each.miscounted for each in run.results or ()),
    )


def _samples(run: StreamRun) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for sample in run.samples:
        for name, value in sample.values.items():
            found.setdefault(name, []).append(value)
    return found


def _distributions(samples: Mapping[str, Sequence[float]]) -> dict[str, Distribution]:
    found = {name: distribution(values) for name, values in samples.items()}
    return {name: each for name, each in found.items() if each is not None}


def _per_second(count: int, begin_s: float, ends_s: Sequence[float]) -> float:
    return count / (ends_s[-1] - begin_s) if ends_s and ends_s[-1] > begin_s else 0.0
