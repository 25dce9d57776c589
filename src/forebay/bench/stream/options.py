"""What is asked of a measurement of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from forebay.bench.load.schedules import MAX_SECONDS, Constant, Schedule, check_requests
from forebay.errors import SettingError
from forebay.s3.location import S3Path

Until = Literal["answered", "committed"]
"""Up to which moment an event's latency counts for its objective."""

MAX_EVENTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSlo:
    """The objective of an event: `until` (answered, or committed) at most `within_s` after its time."""

    within_s: float
    until: Until = "committed"

    def __post_init__(self) -> None:
        if not 0 < self.within_s <= MAX_SECONDS:
            raise SettingError(f"--slo-event-ms: expected more than 0, found {self.within_s * 1000:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLoad:
    """Which events come, and when. A load of its own is one run.

    `schedule`: the times of `events` events, in seconds after the first moment. `data`: a file of JSON
    objects, one a line, taken in order and from the beginning again at its end; None: the generator's posts.
    `seed` decides times and posts.
    """

    schedule: Schedule = field(default_factory=lambda: Constant(10.0))
    events: int = 300
    data: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_requests(self.events)
        if self.events > MAX_EVENTS:
            raise SettingError(f"--events: expected at most {MAX_EVENTS}, found {self.events}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Which pipeline is measured, and how.

    `pipeline`: the path of a pipeline file, or the value of one (relative paths in it count from the working
    directory). Its source is replaced by a feed of events, its sinks by files in a temporary folder, its
    checkpoints are put there too; all else stays as it is. `settings`: `key.in.the.file=VALUE` over it, such
    as `capacity=16`, `checkpoint.interval_s=1`, `key={{ user }}`. `engine`: URLs over the file's; where
    neither names one, the local engine is started, and ended with the measurement. Somebody has to listen at
    one of the URLs before the pipeline is started, but for `engine_later`. `state`: checkpoints are put below
    this address in an object store instead, in a folder of their own that is deleted at the end.

    `load`: what comes. `warm_events`: so many events before, at the load's mean rate but no slower than one a
    second, which are not counted; the measured ones begin when those are committed. `slo`: what goodput
    counts. `patience_s`: how long after the last event is due answers and commits are waited for; what is not
    committed then is lost. `processes`: further processes whose processor and memory are sampled, by name,
    such as the engine's.
    """

    pipeline: Path | Mapping[str, Any]
    settings: Sequence[str] = ()
    engine: Sequence[str] = ()
    engine_later: bool = False
    state: S3Path | None = None
    load: EventLoad = field(default_factory=EventLoad)
    warm_events: int = 20
    slo: EventSlo | None = None
    patience_s: float = 60.0
    processes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.warm_events <= MAX_EVENTS:
            raise SettingError(f"--warm-events: expected 1 to {MAX_EVENTS}, found {self.warm_events}")
        if not 0 < self.patience_s <= MAX_SECONDS:
            raise SettingError(f"--patience: expected more than 0 seconds, found {self.patience_s:g}")
