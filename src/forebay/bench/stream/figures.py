"""The figures of a pipeline's run, and whether it falls behind."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from forebay.bench.metrics import Distribution, distribution
from forebay.bench.statistics import mean_interval, present
from forebay.bench.stream.events import EventSlo, Until
from forebay.bench.stream.records import EventRecord, StreamRun

PARTS = 10
MIN_EVENTS = 50
"""Fewer events cannot separate a trend from chance."""


@dataclass(frozen=True, slots=True)
class Slope:
    """In events per second, with its 95 % interval."""

    per_s: float
    low: float
    high: float

    def grows(self, rate_per_s: float) -> bool:
        """Whether the whole interval is above 0, and the growth above `MAX_GROWTH`."""
        return self.low > 0 and self.per_s > MAX_GROWTH * rate_per_s

    def unsure(self, rate_per_s: float) -> float:
        """Half the interval's width, as a share of the rate."""
        return (self.high - self.low) / 2 / rate_per_s


FIRST_EVENTS = 10
"""Their latency is the time to fill an empty pipeline."""
SETTLE_LATENCIES = 2.0
"""The lag counts from this many first latencies after the first event."""
MIN_LATENCIES = 10.0
"""A run must last this many first latencies."""
MAX_UNSURE = 0.1
"""The widest half interval, as a share of the rate, for which "does not grow" means anything."""
MAX_GROWTH = 0.01
"""Smaller growth, as a share of the rate, is ignored: repeats differ by as much."""


def lag_curve(due_s: Sequence[float], done_s: Sequence[float]) -> list[tuple[float, int]]:
    """The lag at each change; both inputs are sorted."""
    steps = sorted([(at_s, 1) for at_s in due_s] + [(at_s, -1) for at_s in done_s])
    curve: list[tuple[float, int]] = []
    lag = 0
    for at_s, step in steps:
        lag += step
        if curve and curve[-1][0] == at_s:
            curve[-1] = (at_s, lag)
        else:
            curve.append((at_s, lag))
    return curve


def mean_lag(due_s: Sequence[float], done_s: Sequence[float], from_s: float, to_s: float) -> float:
    """The area below the lag's curve, over the length."""

    def area(times_s: Sequence[float]) -> float:
        before, inside = bisect_right(times_s, from_s), bisect_right(times_s, to_s)
        return before * (to_s - from_s) + math.fsum(to_s - at_s for at_s in times_s[before:inside])

    return (area(due_s) - area(done_s)) / (to_s - from_s)


def first_latency_s(due_s: Sequence[float], done_s: Sequence[float]) -> float:
    """The longest latency of the first `FIRST_EVENTS`; both inputs are sorted."""
    return max((done - due for due, done in zip(due_s[:FIRST_EVENTS], done_s, strict=False)), default=0.0)


def least_length_s(due_s: Sequence[float], done_s: Sequence[float], slope: Slope | None) -> float:
    """How long a run must last before its lag is called steady: an interval shrinks with the root of the
    length."""
    least_s = MIN_LATENCIES * first_latency_s(due_s, done_s)
    length_s = due_s[-1] - due_s[0] if due_s else 0.0
    if slope is None or length_s <= 0:
        return least_s
    return max(least_s, length_s * (slope.unsure(len(due_s) / length_s) / MAX_UNSURE) ** 2)


def lag_slope(due_s: Sequence[float], done_s: Sequence[float]) -> Slope | None:
    """The growth of the lag while events were due; both inputs are sorted.

    None for fewer than `MIN_EVENTS`, or a first answer in the second half. The slope is the mean difference
    between the mean lags of neighbouring `PARTS`, with Student's interval.

    Lags are running sums: in simulated queues (16 slots, 95 % of the capacity), `grows` was wrong in 2 % of
    the runs, a least-squares line in 36 %, corrected for autocorrelation in 8 to 25 %.
    """
    if len(due_s) < MIN_EVENTS or due_s[-1] <= due_s[0]:
        return None
    half_s = (due_s[-1] - due_s[0]) / 2
    if not done_s or done_s[0] - due_s[0] > half_s:
        return None
    begin_s = due_s[0] + min(half_s, SETTLE_LATENCIES * first_latency_s(due_s, done_s))
    length_s = (due_s[-1] - begin_s) / PARTS
    means = [
        mean_lag(due_s, done_s, begin_s + part * length_s, begin_s + (part + 1) * length_s)
        for part in range(PARTS)
    ]
    interval = mean_interval([(after - before) / length_s for before, after in pairwise(means)])
    assert interval is not None
    return Slope(interval.mean, interval.low, interval.high)


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
"""Stages of an event's latency: the moments at their ends, and the reason for the wait."""
WINDOW = "window"
RESULT_STAGES = {
    WINDOW: ("due_s", "emitted_s", "until its window was found to be over, or its detector gave it"),
    **{name: STAGES[name] for name in STAGES if name not in ("source", "read")},
}
"""For a result that stands for many events."""


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """The figures of a run, in seconds; of results, if those stand for many events.

    `goodput`: share of offered events that met the objective. `latency`: from the event's own time. `lag`:
    growth of due and unfinished events; None if there were too few.
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
    begin, end, _ = STAGES.get(name) or RESULT_STAGES[name]
    began_s, ended_s = moment_s(event, begin), moment_s(event, end)
    return None if began_s is None or ended_s is None else ended_s - began_s


def stages_of(run: StreamRun) -> Mapping[str, tuple[str, str, str]]:
    return STAGES if run.results is None else RESULT_STAGES


def latency_s(event: EventRecord, until: Until) -> float | None:
    ended_s = event.answered_s if until == "answered" else event.committed_s
    return None if ended_s is None or not event.committed else ended_s - event.due_s


def is_good(event: EventRecord, slo: EventSlo) -> bool:
    took_s = latency_s(event, slo.until)
    return took_s is not None and took_s <= slo.within_s


def lag_times(run: StreamRun) -> tuple[list[float], list[float]]:
    """Sorted times at which events were due and answered, without dead letters."""
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
