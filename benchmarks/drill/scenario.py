"""A scenario: a small pipeline and the faults that it must survive."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import orjson

from forebay.errors import SettingError

Application = Literal["infer", "sessions", "summary", "topics", "trends"]
SourceKind = Literal[
    "file", "directory", "csv", "replay", "letters", "followed", "sse", "websocket", "generator", "kafka"
]
"""`directory`: several files; `followed`: they appear while the pipeline runs, which then has no
end."""
SinkKind = Literal["files", "kafka"]
StateKind = Literal["folder", "s3"]
"""Location of checkpoints, and of result files."""
FaultKind = Literal[
    "kill all", "kill command", "kill jvm", "stop", "copy state", "pause all", "pause command", "pause jvm",
    "kill engine", "pause engine", "cut engine", "stall engine", "cut feed", "stall feed",
    "kill broker", "pause broker", "full disk", "slow disk", "step clock", "take over",
    "cut store", "stall store", "busy store", "delete records",
]  # fmt: skip
"""`kill all`: every process of the run at once."""
Measure = Literal["requests", "checkpoints", "last request", "last commit"]
Standstill = Literal["command", "all but jvm", "all", "cut", "dead"]
"""What is paused: these processes, the connection to the object store (`cut`), or all is killed (`dead`)."""

RESTARTS: frozenset[FaultKind] = frozenset(("kill all", "kill command", "kill jvm", "stop", "copy state"))
"""Faults after which the same command is started again, unless it recovers by itself."""
OF_FEEDS: frozenset[FaultKind] = frozenset(("cut feed", "stall feed"))
OF_BROKERS: frozenset[FaultKind] = frozenset(("kill broker", "pause broker"))
OF_TOPICS: frozenset[FaultKind] = frozenset(("delete records",))
OF_STORES: frozenset[FaultKind] = frozenset(("take over", "cut store", "stall store", "busy store"))
OF_FOLDERS: frozenset[FaultKind] = frozenset(("copy state", "full disk", "slow disk"))
"""Faults of checkpoints and results in local folders."""
AT_THE_END: frozenset[FaultKind] = frozenset(("kill all", "kill command", "kill jvm", "stop", "take over"))
"""Faults that can strike after the input has ended."""
STANDSTILLS: dict[FaultKind, tuple[Standstill, ...]] = {
    "take over": ("command", "all but jvm", "all", "cut"),
    "delete records": ("all", "dead"),
}
SHIMMED: frozenset[FaultKind] = frozenset(("full disk", "slow disk", "step clock"))
"""Faults made by a small library between the processes and the system; they need a compiler."""

SOURCES: dict[Application, tuple[SourceKind, ...]] = {
    "infer": get_args(SourceKind),
    "sessions": ("file", "directory", "csv", "replay", "letters", "sse", "websocket", "kafka"),
    "summary": ("file", "directory", "csv", "replay", "sse", "websocket", "kafka"),
    "topics": ("file", "directory", "csv", "replay", "sse", "websocket", "kafka"),
    "trends": ("file", "directory", "csv", "replay"),
}
"""Sources that keep the order of events, if an application's answers depend on it, and have known positions,
if they depend on those."""
COUNTED: frozenset[Application] = frozenset(("infer", "sessions"))
"""Applications that make one request per event."""
EVENTS: dict[Application, tuple[int, int]] = {
    "infer": (120, 400),
    "sessions": (120, 400),
    "summary": (240, 960),
    "topics": (200, 800),
    "trends": (1100, 1800),
}
SHORT_INPUT = (1, 40)
SHORT_SHARE = 0.25
"""Share of pipelines with a short input and faults at its end."""
S3_SHARE = 0.4
AWAY_S = (0.2, 3.0)
STORE_AWAY_S = (0.5, 8.0)
"""A run stops working if its store does not answer for 2.5 s."""
MIN_FAULTS = 5
MAX_CHECKPOINTS = 2
STEPS_S = (-7200.0, -60.0, -5.0, 5.0, 60.0, 7200.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, made when `after` more requests reached the engine, or checkpoints completed, than at the
    previous one (`of` selects which); or `away_s` after the last request, or after all results were
    committed.

    `away_s`: its duration; `step_s`: change of the clock; `parallelism`: for the resumed pipeline (None: as
    before); `still`: what stands still meanwhile.
    """

    kind: FaultKind
    after: int
    of: Measure = "requests"
    away_s: float = 0.0
    step_s: float = 0.0
    parallelism: int | None = None
    still: Standstill = "all"


@dataclass(frozen=True, slots=True)
class Scenario:
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
    state: StateKind = "folder"

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Scenario:
        try:
            values: dict[str, Any] = orjson.loads(text)
            values["faults"] = tuple(Fault(**fault) for fault in values["faults"])
            return cls(**values)
        except (orjson.JSONDecodeError, TypeError, KeyError) as error:
            raise SettingError(f"this is not a scenario: {error}; expected what the drill printed") from None

    @property
    def in_order(self) -> bool:
        """Whether the output depends on the order of all events, not only within a key."""
        return self.event_time or self.application in {"summary", "topics", "trends"}

    @property
    def portions(self) -> int:
        """Number of portions of a topic: before each deletion, one that was not read yet."""
        return 1 + sum(fault.kind == "delete records" for fault in self.faults)


@dataclass(frozen=True, slots=True)
class Range:
    applications: tuple[Application, ...] = get_args(Application)
    sources: tuple[SourceKind, ...] = get_args(SourceKind)
    sinks: tuple[SinkKind, ...] = get_args(SinkKind)
    faults: tuple[FaultKind, ...] = get_args(FaultKind)
    most_faults: int = 12
    kafka: bool = False
    shim: bool = True
    s3: bool = False
    states: tuple[StateKind, ...] = get_args(StateKind)


def draw(seed: int, among: Range) -> Scenario:
    dice = random.Random(f"scenario:{seed}")
    states: tuple[StateKind, ...] = tuple(each for each in among.states if among.s3 or each != "s3")
    possible = {
        (application, source, sink, state): kinds
        for application in among.applications
        for source in SOURCES[application]
        for sink in among.sinks
        for state in states
        if source in among.sources and (among.kafka or "kafka" not in (source, sink))
        if (kinds := _possible(among, application, source, sink, state))
    }
    if not possible:
        raise SettingError(
            "no pipeline with a fault is left to draw: allow more applications, sources, sinks or kinds"
        )
    # Applications in turn, so that few seeds reach all of them; the plain one more often.
    applications = sorted({each[0] for each in possible})
    weights = [3 if each == "infer" else 2 if each in {"sessions", "summary"} else 1 for each in applications]
    application = dice.choices(applications, weights)[0]
    own = [each for each in possible if each[0] == application]
    shares = [S3_SHARE if state == "s3" else 1 - S3_SHARE for *_, state in own]
    _, source, sink, state = chosen = dice.choices(own, shares)[0]
    kinds = possible[chosen]
    plain = application == "infer"
    ends = [kind for kind in kinds if kind in AT_THE_END]
    short = bool(ends) and application in COUNTED and source != "followed" and dice.random() < SHORT_SHARE
    events = dice.randint(*(SHORT_INPUT if short else EVENTS[application]))
    return Scenario(
        seed=seed,
        application=application,
        source=source,
        sink=sink,
        events=events,
        keys=dice.choice((1, 3, 10)) if application != "summary" else dice.choice((2, 8)),
        ordered=plain and source not in {"generator", "followed"} and dice.random() < 0.5,
        event_time=application == "summary" or (plain and source != "letters" and dice.random() < 0.3),
        parallelism=dice.choice((1, 1, 2)),
        capacity=dice.choice((2, 8, 32)),
        checkpoint_s=dice.choice((0.2, 0.5, 1.0)),
        slow=dice.choice((0.0, 0.05, 0.2)),
        bad=dice.choice((0, 5 if short else 17)) if plain and source != "generator" else 0,
        faults=_at_the_end(dice, ends) if short else _faults(dice, kinds, among, application, events),
        state=state,
    )


def _possible(
    among: Range, application: Application, source: SourceKind, sink: SinkKind, state: StateKind
) -> list[FaultKind]:
    left_out = OF_FOLDERS if state == "s3" else OF_STORES
    if source not in {"sse", "websocket"}:
        left_out |= OF_FEEDS
    if "kafka" not in (source, sink):
        left_out |= OF_BROKERS
    if source != "kafka" or application != "infer":
        left_out |= OF_TOPICS
    if not among.shim:
        left_out |= SHIMMED
    return [kind for kind in among.faults if kind not in left_out]


def _at_the_end(dice: random.Random, kinds: list[FaultKind]) -> tuple[Fault, ...]:
    ends: tuple[Measure, ...] = ("last request", "last commit")
    chosen = dice.choices(kinds, k=dice.randint(1, 3))
    return tuple(_fault(dice, kind, dice.choice(ends), 1) for kind in chosen)


def _faults(
    dice: random.Random, kinds: list[FaultKind], among: Range, application: Application, events: int
) -> tuple[Fault, ...]:
    count = dice.randint(min(MIN_FAULTS, among.most_faults), among.most_faults)
    # Some applications make few calls, or none for a long time; those count checkpoints.
    measures: tuple[Measure, ...] = ("checkpoints",)
    if application in COUNTED:
        measures = ("requests", "requests", "checkpoints")
    share = max(1, events // (count + 1))
    return tuple(_fault(dice, kind, dice.choice(measures), share) for kind in dice.choices(kinds, k=count))


def _fault(dice: random.Random, kind: FaultKind, of: Measure, share: int) -> Fault:
    return Fault(
        kind=kind,
        after=dice.randint(1, MAX_CHECKPOINTS if of == "checkpoints" else share),
        of=of,
        away_s=round(dice.uniform(*(STORE_AWAY_S if kind in OF_STORES - {"take over"} else AWAY_S)), 1),
        step_s=dice.choice(STEPS_S) if kind == "step clock" else 0.0,
        parallelism=dice.choice((None, 1, 2)) if kind in RESTARTS else None,
        still=dice.choice(STANDSTILLS.get(kind, ("all",))),
    )


MIN_EVENTS = 20


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that are one step simpler, biggest steps first."""
    faults = scenario.faults
    if len(faults) > 1:
        half = len(faults) // 2
        yield replace(scenario, faults=faults[:half])
        yield replace(scenario, faults=faults[half:])
        if half > 1:
            for index in range(len(faults)):
                yield replace(scenario, faults=faults[:index] + faults[index + 1 :])
    of_kafka = any(fault.kind in OF_BROKERS for fault in faults)
    of_source = any(fault.kind in OF_FEEDS | OF_TOPICS for fault in faults)
    if scenario.state == "s3" and not any(fault.kind in OF_STORES for fault in faults):
        yield replace(scenario, state="folder")
    if scenario.sink != "files" and not (of_kafka and scenario.source != "kafka"):
        yield replace(scenario, sink="files")
    plain = SOURCES[scenario.application][0]
    if scenario.source != plain and not of_source and not (of_kafka and scenario.sink != "kafka"):
        yield replace(scenario, source=plain)
    if scenario.events // 2 >= MIN_EVENTS:
        yield replace(scenario, events=scenario.events // 2)
    if scenario.parallelism > 1:
        yield replace(scenario, parallelism=1)
    if any(fault.parallelism is not None for fault in faults):
        yield replace(scenario, faults=tuple(replace(fault, parallelism=None) for fault in faults))
    if scenario.bad:
        yield replace(scenario, bad=0)
    if scenario.slow:
        yield replace(scenario, slow=0.0)
    if scenario.event_time and scenario.application == "infer":
        yield replace(scenario, event_time=False)
    if scenario.keys > 1 and scenario.application in {"infer", "sessions"}:
        yield replace(scenario, keys=1)


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], tries: int) -> Scenario:
    found, left = scenario, tries
    while left > 0:
        for candidate in smaller(found):
            left -= 1
            if fails(candidate):
                found = candidate
                break
            if left <= 0:
                return found
        else:
            return found
    return found
