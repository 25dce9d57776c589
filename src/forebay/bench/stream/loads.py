"""Turns command-line options into a load of events."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from forebay.bench.load.schedules import MAX_SECONDS, ClosedLoop, TraceReplay, check_rate
from forebay.bench.provenance import provenance
from forebay.bench.sampling import fetch_version
from forebay.bench.serve import LoadOptions
from forebay.bench.stream.events import EventLoad, StreamOptions
from forebay.bench.stream.figures import MIN_EVENTS
from forebay.bench.stream.measure import StreamSession
from forebay.bench.stream.records import StreamRun
from forebay.errors import SettingError
from forebay.settings import read_secret

RATE_PER_S = 10.0
EVENTS = 300
TRIAL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLoadOptions:
    """The options of `forebay bench stream`: at most one of `rate`, `ramp`, `bursts` and `trace`.

    `events` None: `seconds` times the rate, all of a trace, or `EVENTS`.
    """

    rate: float | None = None
    burstiness: float | None = None
    constant: bool = False
    ramp: str | None = None
    bursts: str | None = None
    trace: Path | None = None
    speed: float = 1.0
    events: int | None = None
    seconds: float | None = None
    data: Path | None = None
    seed: int = 0

    @property
    def fixed(self) -> str:
        given = {
            "--ramp": self.ramp,
            "--bursts": self.bursts,
            "--trace": self.trace,
            "--events": self.events,
        }
        return " and ".join(name for name, value in given.items() if value is not None)

    def at_rate(self, rate_per_s: float, turn: int = 0, times: float = 1.0) -> EventLoad:
        """The load at another rate; at least twice `MIN_EVENTS`."""
        count = max(2 * MIN_EVENTS, round(rate_per_s * times * (self.seconds or TRIAL_S)))
        return replace(self, rate=rate_per_s, seconds=None, events=count).load(turn)

    def load(self, turn: int = 0) -> EventLoad:
        """Each `turn` has its own seed. Raises `SettingError`."""
        timed = self.ramp or self.bursts or self.trace
        rate = RATE_PER_S if self.rate is None and not timed else self.rate
        if rate is not None:
            check_rate("--rate", rate)
        schedule = LoadOptions(
            rates=() if rate is None else (rate,),
            burstiness=self.burstiness,
            constant=self.constant,
            ramp=self.ramp,
            bursts=self.bursts,
            trace=self.trace,
            speed=self.speed,
        ).schedules()[0]
        assert not isinstance(schedule, ClosedLoop)
        return EventLoad(
            schedule=schedule,
            events=self._events(rate, schedule.arrivals_s if isinstance(schedule, TraceReplay) else ()),
            data=self.data,
            seed=self.seed + turn,
        )

    def _events(self, rate: float | None, arrivals_s: object) -> int:
        if self.events is not None and self.seconds is not None:
            raise SettingError("--events and --seconds: expected one of them")
        if self.events is not None:
            return self.events
        if self.seconds is not None:
            if rate is None or not 0 < self.seconds <= MAX_SECONDS:
                raise SettingError(
                    f"--seconds {self.seconds:g}: expected more than 0, with --rate; elsewhere give --events"
                )
            return max(1, round(rate * self.seconds))
        if isinstance(arrivals_s, list) and arrivals_s:
            return len(arrivals_s)
        return EVENTS


def with_origin(run: StreamRun, session: StreamSession, options: StreamOptions) -> StreamRun:
    secret = session.spec.engine.secret()
    key = None if secret is None else read_secret(secret)
    urls = session.engines.urls
    pipeline = options.pipeline
    found = provenance(
        command=["forebay", *sys.argv[1:]],
        target=urls[0] if urls else None,
        engine_version=fetch_version(urls[0], api_key=key) if urls else None,
        processes=session.engines.processes,
        seed=options.load.seed,
        data=options.load.data,
        secrets=() if key is None else (key,),
    )
    if isinstance(pipeline, Path):
        found["pipeline"] = pipeline.name
    return replace(run, provenance=found)
