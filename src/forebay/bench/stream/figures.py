"""The figures of a run of a pipeline, from its records alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay.bench.metrics import Distribution
from forebay.bench.stream.options import EventSlo
from forebay.bench.stream.records import StreamRun
from forebay.errors import SettingError

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
"""The parts of an event's latency: the moments between which each lies, and what was waited for."""


@dataclass(frozen=True, slots=True)
class Slope:
    """How fast a lag grew, in events per second, with its 95 % interval: a straight line through the means of
    ten parts of the time in which events were due (see `forebay.bench.stream.lag`)."""

    per_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """What a run gave.

    `offered`: events that were due. `committed`: those with a result in the sink; `failed`: with a dead
    letter; `lost`: with neither; `doubled`: with more than one result. `offered_per_s`: due events over the
    time in which they were due. `answered_per_s` and `committed_per_s`: over the time from the first event
    that was due to the last answer or commit. `goodput`: the share of all that were offered that met the
    objective; `good_per_s`: so many a second; None without an objective.

    `latency`: from the event's own time to `answered` and to `committed`. `stages`: by the names of `STAGES`.
    Distributions are in seconds. `lag` of `answered` and `committed`: how fast the number of events that were
    due and not there yet grew; None where there were too few to tell. `most_lag`: the largest it was.
    `checkpoint`: distributions of `duration_s`, `state_bytes` and `written_bytes`. `watermark_delay`: of its
    samples; None without event time. `engine`: mean and largest of each of the samples.
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


def stream_figures(run: StreamRun, slo: EventSlo | None = None) -> StreamFigures:
    """The figures of `run`; with an objective, its goodput."""
    raise SettingError("not there yet")
