"""The backlog and its expected cost: of one subtask, and in the topics of a job."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import Amount, ServiceClass, Tokens

PARTS = 12
"""A class's backlog is reported in this many parts per SLO."""
MAX_PARTS = 160
FADE = 0.02
CHARS_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class WaitingRecords:
    due_ms: int
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class DemandReport:
    """The state of one subtask at `at_ms` by the wall clock.

    `arrived` and `done` are totals since it began; `by_class` includes restored events. `at_replicas`:
    requests in flight by URL, also at leaving replicas; `usable`: replicas that may get requests; `full`:
    none has room.
    """

    at_ms: int
    waiting: tuple[WaitingRecords, ...] = ()
    running: int = 0
    running_tokens: float = 0.0
    kv_usage: float = 0.0
    arrived: Tokens = field(default_factory=Tokens)
    by_class: Mapping[str, Tokens] = field(default_factory=dict)
    done: Tokens = field(default_factory=Tokens)
    listing: int = 0
    at_replicas: Mapping[str, int] = field(default_factory=dict)
    usable: int = 0
    full: bool = False

    @property
    def backlog_tokens(self) -> float:
        return sum(part.tokens.prompt + part.tokens.output for part in self.waiting)

    def times(self, factor: int) -> DemandReport:
        return replace(
            self,
            waiting=tuple(WaitingRecords(part.due_ms, part.tokens.times(factor)) for part in self.waiting),
            running=self.running * factor,
            running_tokens=self.running_tokens * factor,
            arrived=self.arrived.times(factor),
            by_class={name: tokens.times(factor) for name, tokens in self.by_class.items()},
            done=self.done.times(factor),
        )


Mean = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class LengthsMemory:
    """Means over `count` answers: characters of the event `x`, tokens of the prompt `y`, products, tokens of
    the answer.
    """

    count: Annotated[int, Field(ge=0)]
    x: Mean
    y: Mean
    xx: Mean
    xy: Mean
    output: Mean


_LENGTHS_MEMORY: TypeAdapter[LengthsMemory] = TypeAdapter(LengthsMemory)


class AnswerLengths:
    """Learns how many tokens to expect. A prompt has a fixed part, and one proportional to the event."""

    def __init__(self, answer_tokens: float) -> None:
        self.output = answer_tokens
        self._count = 0
        self._x = self._y = self._xx = self._xy = 0.0

    def prompt(self, chars: int) -> float:
        if not self._count:
            return max(chars / CHARS_PER_TOKEN, 1.0)
        spread = self._xx - self._x * self._x
        slope = (self._xy - self._x * self._y) / spread if spread > 1.0 else 0.0
        slope = min(max(slope, 0.0), 2.0)
        return max(self._y + slope * (chars - self._x), 1.0)

    def learn(self, chars: int, prompt_tokens: int, output_tokens: int) -> None:
        self._count += 1
        share = max(FADE, 1 / self._count)
        for name, value in (
            ("_x", float(chars)),
            ("_y", float(prompt_tokens)),
            ("_xx", float(chars) * chars),
            ("_xy", float(chars) * prompt_tokens),
            ("output", float(output_tokens)),
        ):
            old = getattr(self, name)
            setattr(self, name, old + share * (value - old))

    def remembers(self) -> Mapping[str, object]:
        return asdict(LengthsMemory(self._count, self._x, self._y, self._xx, self._xy, self.output))

    def recall(self, memory: Mapping[str, object]) -> None:
        found = _LENGTHS_MEMORY.validate_python(memory)
        if found.count:
            self._count, self.output = found.count, found.output
            self._x, self._y, self._xx, self._xy = found.x, found.y, found.xx, found.xy


@dataclass(frozen=True, slots=True)
class _Accepted:
    request_id: str
    chars: int
    due_ms: int
    service: ServiceClass


class DemandMeter:
    """Tracks the events of one subtask, by numbers that are unique among the events held.

    `accept` may be called from another thread. Restored events wait, but have not arrived.
    """

    def __init__(self, answer_tokens: float) -> None:
        self.lengths = AnswerLengths(answer_tokens)
        self._here: dict[int, _Accepted] = {}
        self._arrived = self._done = Tokens()
        self._by_class: dict[str, Tokens] = {}

    def accept(
        self,
        number: int,
        request_id: str,
        chars: int,
        read_ms: int,
        service: ServiceClass,
        *,
        again: bool = False,
    ) -> None:
        due_ms = read_ms + round(service.slo_s * 1000)
        self._here[number] = _Accepted(request_id, chars, due_ms, service)
        tokens = self._expected(chars)
        before = self._by_class.get(service.name, Tokens())
        self._by_class = {**self._by_class, service.name: before + tokens}
        if not again:
            self._arrived += tokens

    def finish(self, number: int, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        event = self._here.pop(number, None)
        if prompt_tokens:
            self.lengths.learn(0 if event is None else event.chars, prompt_tokens, output_tokens)
            self._done += Tokens(1, prompt_tokens, output_tokens)

    def report(
        self,
        now_ms: int,
        *,
        sent: Collection[str],
        kv_usage: float = 0.0,
        listing: int = 0,
        at_replicas: Mapping[str, int] | None = None,
        usable: int = 0,
        full: bool = False,
    ) -> DemandReport:
        """The state at `now_ms`, of the wall clock. Events among `sent` are at replicas; all others wait."""
        # Copied in one step: another thread adds to it.
        here = list(self._here.values())
        waiting = [event for event in here if event.request_id not in sent]
        running = len(here) - len(waiting)
        each = self.lengths.prompt(round(sum(event.chars for event in here) / len(here))) if here else 0.0
        return DemandReport(
            at_ms=now_ms,
            waiting=self._parts(waiting),
            running=running,
            running_tokens=running * (each + self.lengths.output / 2),
            kv_usage=kv_usage,
            arrived=self._arrived,
            by_class=self._by_class,
            done=self._done,
            listing=listing,
            at_replicas=dict(at_replicas or {}),
            usable=usable,
            full=full,
        )

    def _parts(self, waiting: Iterable[_Accepted]) -> tuple[WaitingRecords, ...]:
        parts: dict[int, Tokens] = {}
        for event in waiting:
            step_ms = max(round(event.service.slo_s * 1000) // PARTS, 1)
            due_ms = event.due_ms // step_ms * step_ms
            parts[due_ms] = parts.get(due_ms, Tokens()) + self._expected(event.chars)
        found = sorted(parts.items())
        if len(found) > MAX_PARTS:
            # All work that is long overdue counts the same.
            early = sum((tokens for _, tokens in found[:-MAX_PARTS]), Tokens())
            found = [(found[-MAX_PARTS][0], found[-MAX_PARTS][1] + early), *found[1 - MAX_PARTS :]]
        return tuple(WaitingRecords(due_ms, tokens) for due_ms, tokens in found)

    def _expected(self, chars: int) -> Tokens:
        return Tokens(1, self.lengths.prompt(chars), self.lengths.output)


COUNTED_S = 30.0
STANDS_S = 60.0
"""Records that stay for this long, though the job is idle, are not readable."""
Count = Annotated[int, Field(ge=0, le=10**15)]


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """`records` that wait, and their estimated tokens; None without a basis. `age_s`: since they were
    counted.
    """

    records: Count
    prompt_tokens: Count | None
    completion_tokens: Count | None
    age_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]


_BACKLOG: TypeAdapter[TopicBacklog | None] = TypeAdapter(TopicBacklog | None)


def encode_backlog(backlog: TopicBacklog | None) -> bytes:
    return orjson.dumps(backlog)


def decode_backlog(data: bytes) -> TopicBacklog | None:
    try:
        return _BACKLOG.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise SettingError(f"{where}: {first['msg']}") from None


@dataclass(frozen=True, slots=True)
class CostMemory:
    prompt: Amount
    output: Amount


_COST_MEMORY: TypeAdapter[CostMemory] = TypeAdapter(CostMemory)


class RecordCost:
    """The expected cost of a record: the last estimate; before that `assumed` tokens for prompt and
    answer.
    """

    def __init__(self, assumed: float) -> None:
        self._each: CostMemory | None = None
        self._assumed = assumed

    def tokens(self, backlog: TopicBacklog) -> Tokens:
        prompt, output, records = backlog.prompt_tokens, backlog.completion_tokens, backlog.records
        if prompt is not None and output is not None:
            if records:
                self._each = CostMemory(prompt / records, output / records)
            return Tokens(records, prompt, output)
        each = self._each or CostMemory(self._assumed, self._assumed)
        return Tokens(records, round(records * each.prompt), round(records * each.output))

    def remembers(self) -> Mapping[str, object]:
        return {} if self._each is None else asdict(self._each)

    def recall(self, memory: Mapping[str, object]) -> None:
        if memory:
            self._each = _COST_MEMORY.validate_python(memory)


class TopicQueue:
    def __init__(self, assumed: float) -> None:
        self.cost = RecordCost(assumed)
        self._waits: Tokens | None = None
        self._counted_s = -math.inf

    def observe(self, backlog: TopicBacklog, now_s: float) -> None:
        self._waits = self.cost.tokens(backlog)
        self._counted_s = now_s - backlog.age_s

    def waits(self, now_s: float) -> Tokens | None:
        return None if now_s - self._counted_s > COUNTED_S else self._waits


class StandingRecords:
    """Recognises records that only seem to wait: each end of a transaction takes an offset, so a topic
    written in transactions always shows about one record per partition.

    Records that stay for `STANDS_S`, while the job is idle, do not count until their number shrinks.
    """

    def __init__(self) -> None:
        self._standing = self._last = 0.0
        self._since_s: float | None = None

    def not_counted(self) -> None:
        """Do not count this time as idle: nothing can be read, as while Kafka is down."""
        self._since_s = None

    def take_off(self, waits: Tokens, now_s: float, *, idle: bool) -> Tokens:
        records = waits.requests
        if records < self._standing:
            self._standing = 0.0
        if not idle or records != self._last or self._since_s is None:
            self._since_s = now_s
        self._last = records
        if now_s - self._since_s >= STANDS_S:
            self._standing = records
        if not self._standing:
            return waits
        return waits.times((records - self._standing) / records)
