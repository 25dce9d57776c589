"""A scenario: one small pipeline and the faults that it must survive. A value, as JSON and back."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import orjson

from forebay.errors import SettingError

Application = Literal["infer", "sessions", "summary", "topics", "trends"]
SourceKind = Literal[
    "file", "directory", "csv", "replay", "letters", "followed", "sse", "websocket", "generator", "kafka"
]
"""`directory`: several files; `followed`: they appear while the pipeline runs, which has no end then.
`letters`: dead letters that are fed in again."""
SinkKind = Literal["files", "kafka"]
FaultKind = Literal[
    "kill all",
    "kill command",
    "kill jvm",
    "stop",
    "copy state",
    "pause all",
    "pause command",
    "pause jvm",
    "kill engine",
    "pause engine",
    "cut engine",
    "stall engine",
    "cut feed",
    "stall feed",
    "kill broker",
    "pause broker",
    "full disk",
    "slow disk",
    "step clock",
]
"""`kill all`: every process of the run at once. `kill command`, `kill jvm`: that one process. `stop`: SIGTERM
to the command. `copy state`: kill all, and resume from a copy of the state folder that has lost its times.
`pause …`: SIGSTOP, and SIGCONT later. `cut …`: connections are reset and new ones refused for a while;
`stall …`: they stay, and nothing passes. `full disk`, `slow disk`, `step clock`: as the run's processes see
it."""
Measure = Literal["requests", "checkpoints"]

RESTARTS: frozenset[FaultKind] = frozenset(("kill all", "kill command", "kill jvm", "stop", "copy state"))
"""Faults after which the same command is given again, unless it recovers by itself."""
OF_FEEDS: frozenset[FaultKind] = frozenset(("cut feed", "stall feed"))
OF_BROKERS: frozenset[FaultKind] = frozenset(("kill broker", "pause broker"))
SHIMMED: frozenset[FaultKind] = frozenset(("full disk", "slow disk", "step clock"))
"""Faults that need a compiler: a small library between the processes and the system makes them."""

SOURCES: dict[Application, tuple[SourceKind, ...]] = {
    "infer": get_args(SourceKind),
    "sessions": ("file", "directory", "csv", "replay", "letters", "sse", "websocket", "kafka"),
    "summary": ("file", "directory", "csv", "replay", "sse", "websocket", "kafka"),
    "topics": ("file", "directory", "csv", "replay", "sse", "websocket", "kafka"),
    "trends": ("file", "directory", "csv", "replay"),
}
"""Sources that keep the events in order, where an application's answers depend on it, and give them positions
that are known beforehand, where they depend on those."""
EVENTS: dict[Application, tuple[int, int]] = {
    "infer": (120, 400),
    "sessions": (120, 400),
    "summary": (240, 960),
    "topics": (200, 800),
    "trends": (1100, 1800),
}
AWAY_S = (0.2, 3.0)
LEAST_FAULTS = 5
MOST_CHECKPOINTS = 2
STEPS_S = (-7200.0, -60.0, -5.0, 5.0, 60.0, 7200.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, made when `after` more requests reached the engine, or checkpoints completed, than at the
    one before (`of` says which). `away_s`: how long it lasts; `step_s`: by how much the clock is set;
    `parallelism`: what the pipeline is resumed at (None: as before)."""

    kind: FaultKind
    after: int
    of: Measure = "requests"
    away_s: float = 0.0
    step_s: float = 0.0
    parallelism: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One pipeline and its faults. `keys`: among how many keys the events are spread. `slow`: the share of
    answers that take twenty times as long. `bad`: every so many events, one that cannot be answered (0:
    none)."""

    seed: int
    application: Application
    source: SourceKind
    sink: SinkKind
    events: int
    keys: int
    ordered: bool
    event_time: bool
    parallelism: int
    capacity: int
    checkpoint_s: float
    slow: float
    bad: int
    faults: tuple[Fault, ...]

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Scenario:
        """Raises `SettingError` where `text` is no scenario."""
        try:
            values: dict[str, Any] = orjson.loads(text)
            values["faults"] = tuple(Fault(**fault) for fault in values["faults"])
            return cls(**values)
        except (orjson.JSONDecodeError, TypeError, KeyError) as error:
            raise SettingError(f"this is no scenario: {error}; expected what the drill printed") from None

    @property
    def in_order(self) -> bool:
        """Whether what comes out depends on the order of all events, and not of those of one key alone."""
        return self.event_time or self.application in {"summary", "topics", "trends"}


@dataclass(frozen=True, slots=True)
class Range:
    """What scenarios are drawn from. `kafka`, `shim`: whether this machine has what they need."""

    applications: tuple[Application, ...] = get_args(Application)
    sources: tuple[SourceKind, ...] = get_args(SourceKind)
    sinks: tuple[SinkKind, ...] = get_args(SinkKind)
    faults: tuple[FaultKind, ...] = get_args(FaultKind)
    most_faults: int = 12
    kafka: bool = False
    shim: bool = True


def draw(seed: int, among: Range) -> Scenario:
    """The scenario of a seed: the same for the same arguments. Raises `SettingError` where nothing is left to
    draw from."""
    dice = random.Random(f"scenario:{seed}")
    pairs = [
        (application, source, sink)
        for application in among.applications
        for source in SOURCES[application]
        for sink in among.sinks
        if source in among.sources and (among.kafka or "kafka" not in (source, sink))
    ]
    if not pairs:
        raise SettingError("no pipeline is left to draw: allow more applications, sources or sinks")
    # One application after another, so that few seeds reach all of them; more often the plain one.
    applications = sorted({pair[0] for pair in pairs})
    weights = [3 if each == "infer" else 2 if each in {"sessions", "summary"} else 1 for each in applications]
    application = dice.choices(applications, weights)[0]
    source, sink = dice.choice([pair[1:] for pair in pairs if pair[0] == application])
    plain = application == "infer"
    ordered = plain and source not in {"generator", "followed"} and dice.random() < 0.5
    timed = application == "summary" or (plain and source != "letters" and dice.random() < 0.3)
    parallelism = dice.choice((1, 1, 2))
    events = dice.randint(*EVENTS[application])
    return Scenario(
        seed=seed,
        application=application,
        source=source,
        sink=sink,
        events=events,
        keys=dice.choice((1, 3, 10)) if application != "summary" else dice.choice((2, 8)),
        ordered=ordered,
        event_time=timed,
        parallelism=parallelism,
        capacity=dice.choice((2, 8, 32)),
        checkpoint_s=dice.choice((0.2, 0.5, 1.0)),
        slow=dice.choice((0.0, 0.05, 0.2)),
        bad=dice.choice((0, 0, 17)) if plain and source != "generator" else 0,
        faults=_faults(dice, among, application, {source, sink}, events),
    )


def _faults(
    dice: random.Random, among: Range, application: Application, places: set[str], events: int
) -> tuple[Fault, ...]:
    left_out: set[FaultKind] = set()
    if not places & {"sse", "websocket"}:
        left_out |= OF_FEEDS
    if "kafka" not in places:
        left_out |= OF_BROKERS
    if not among.shim:
        left_out |= SHIMMED
    kinds = [kind for kind in among.faults if kind not in left_out]
    if not kinds:
        raise SettingError("no fault is left to draw: allow more kinds")
    count = dice.randint(min(LEAST_FAULTS, among.most_faults), among.most_faults)
    # Some applications make few calls, or none for long; those count by checkpoints.
    measures: tuple[Measure, ...] = ("checkpoints",)
    if application in {"infer", "sessions"}:
        measures = ("requests", "requests", "checkpoints")
    share = max(1, events // (count + 1))
    return tuple(_fault(dice, kind, dice.choice(measures), share) for kind in dice.choices(kinds, k=count))


def _fault(dice: random.Random, kind: FaultKind, of: Measure, share: int) -> Fault:
    return Fault(
        kind=kind,
        after=dice.randint(1, share if of == "requests" else MOST_CHECKPOINTS),
        of=of,
        away_s=round(dice.uniform(*AWAY_S), 1),
        step_s=dice.choice(STEPS_S) if kind == "step clock" else 0.0,
        parallelism=dice.choice((None, 1, 2)) if kind in RESTARTS else None,
    )
