"""What scaling learns: the speed of replicas and the share of each class of service, kept as a small JSON
document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from pydantic import TypeAdapter

from forebay.codec import FORMAT
from forebay.errors import SettingError
from forebay.fleet.autoscale.base import (
    Amount,
    Remembers,
    ReplicaSpeed,
    ServiceClass,
    Tokens,
)

ENOUGH_S = 20.0
MEMORY_S = 300.0
MAX_FACTOR = 1000.0


@dataclass(frozen=True, slots=True)
class SpeedMemory:
    """Weighted replica seconds, and the work done in them, in assumed seconds."""

    spent_s: Amount
    work_s: Amount


_SPEED_MEMORY: TypeAdapter[SpeedMemory] = TypeAdapter(SpeedMemory)


class LearnedSpeed:
    """A `Speed` that starts as assumed and is corrected by one factor: replica seconds over work done.

    Time counts while no replica has room for more; other time gives a lower bound only.
    """

    def __init__(self, assumed: ReplicaSpeed) -> None:
        self._assumed = assumed
        self._spent_s = self._work_s = 0.0
        self._idle_s = self._idle_work_s = 0.0
        self.factor = 1.0

    @property
    def requests(self) -> int:
        return self._assumed.requests

    def work_s(self, tokens: Tokens) -> float:
        return self._assumed.work_s(tokens) * self.factor

    def add(self, done: Tokens, replicas_s: float, *, busy: bool) -> None:
        if not replicas_s > 0:
            return
        work_s = self._assumed.work_s(done)
        if busy:
            self._learn(replicas_s, work_s)
            return
        self._idle_s += replicas_s
        self._idle_work_s += work_s
        if self._idle_s >= ENOUGH_S:
            if self._idle_work_s * self.factor > self._idle_s:
                self._learn(self._idle_s, self._idle_work_s)
            self._idle_s = self._idle_work_s = 0.0

    def remembers(self) -> Mapping[str, object]:
        return asdict(SpeedMemory(self._spent_s, self._work_s))

    def recall(self, memory: Mapping[str, object]) -> None:
        found = _SPEED_MEMORY.validate_python(memory)
        self._spent_s, self._work_s = found.spent_s, found.work_s
        self._correct()

    def _learn(self, replicas_s: float, work_s: float) -> None:
        if not self._work_s and not work_s:
            # There are no answers yet: the replicas have only just started.
            return
        kept = max(0.0, 1 - replicas_s / MEMORY_S)
        self._spent_s = self._spent_s * kept + replicas_s
        self._work_s = self._work_s * kept + work_s
        self._correct()

    def _correct(self) -> None:
        if self._spent_s >= ENOUGH_S and self._work_s > 0:
            self.factor = min(max(self._spent_s / self._work_s, 1 / MAX_FACTOR), MAX_FACTOR)


LAST = 2000.0
_MIX_MEMORY: TypeAdapter[dict[str, tuple[Amount, Amount, Amount]]] = TypeAdapter(
    dict[str, tuple[Amount, Amount, Amount]]
)


class ClassMix:
    """Shares of recent requests and tokens among `classes`; without any, everything is of the first class."""

    def __init__(self, classes: Sequence[ServiceClass]) -> None:
        self._classes = tuple(classes)
        self._seen: dict[str, Tokens] = {}

    def add(self, by_class: Mapping[str, Tokens]) -> None:
        for name, tokens in by_class.items():
            self._seen[name] = self._seen.get(name, Tokens()) + tokens
        count = sum(tokens.requests for tokens in self._seen.values())
        if count > LAST:
            self._seen = {name: tokens.times(LAST / count) for name, tokens in self._seen.items()}

    def split(self, tokens: Tokens) -> list[tuple[ServiceClass, Tokens]]:
        """Divide `tokens` among all classes; the sum is `tokens`, up to rounding."""
        return _shared_out(tokens, self._seen, self._classes)

    def split_as(self, tokens: Tokens, by_class: Mapping[str, Tokens]) -> list[tuple[ServiceClass, Tokens]]:
        known = any(each.requests > 0 for each in by_class.values())
        return _shared_out(tokens, by_class if known else self._seen, self._classes)

    def remembers(self) -> Mapping[str, object]:
        return {name: (each.requests, each.prompt, each.output) for name, each in self._seen.items()}

    def recall(self, memory: Mapping[str, object]) -> None:
        self._seen = {name: Tokens(*each) for name, each in _MIX_MEMORY.validate_python(memory).items()}


def _shared_out(
    tokens: Tokens, by_class: Mapping[str, Tokens], classes: Sequence[ServiceClass]
) -> list[tuple[ServiceClass, Tokens]]:
    first, *others = classes
    total = sum(by_class.values(), Tokens())
    parts, rest = [], tokens
    for each in others:
        seen = by_class.get(each.name, Tokens())
        part = Tokens(
            tokens.requests * _share(seen.requests, total.requests),
            tokens.prompt * _share(seen.prompt, total.prompt),
            tokens.output * _share(seen.output, total.output),
        )
        parts.append((each, part))
        rest += part.times(-1)
    left = Tokens(max(rest.requests, 0.0), max(rest.prompt, 0.0), max(rest.output, 0.0))
    return [(first, left), *parts]


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


MAX_PART_BYTES = 1 << 17
"""A larger part is not kept; a season takes at most a sixth of it."""
KEEP_S = 60.0


class ScalingMemory:
    """Keeps `parts`, by name, if they implement `Remembers`. Exceptions of third-party parts are caught.

    `of` identifies what the state is valid for: with another `of` it is not used.
    """

    def __init__(self, of: Mapping[str, str | float], parts: Mapping[str, object]) -> None:
        self._of = dict(of)
        self._parts = {name: part for name, part in parts.items() if isinstance(part, Remembers)}
        self._saved: dict[str, bytes] = {}

    def save(self, at_ms: int) -> bytes | None:
        """The document; None if nothing has changed since the last one."""
        parts = {name: saved for name, part in self._parts.items() if (saved := _saved(part))}
        if parts == self._saved:
            return None
        self._saved = parts
        fragments = {name: orjson.Fragment(saved) for name, saved in parts.items()}
        return orjson.dumps({"format": FORMAT, "at_ms": at_ms, "of": self._of, "parts": fragments})

    def recall(self, data: bytes) -> list[str]:
        try:
            document = _read(data)
        except SettingError as error:
            return [str(error)]
        if document.get("of") != self._of:
            return [f"it was learned from {str(document.get('of'))[:200]}, not from {self._of}"]
        problems = []
        kept = document.get("parts")
        for name, part in self._parts.items():
            if not isinstance(kept, dict) or name not in kept:
                continue
            try:
                part.recall(kept[name])
            except Exception as error:
                first = (str(error).splitlines() or [""])[0]
                problems.append(f"{name}: {type(error).__name__}: {first[:200]}")
        return problems


def saved_ms(data: bytes) -> int:
    try:
        at_ms = _read(data).get("at_ms")
    except SettingError:
        return -1
    return at_ms if isinstance(at_ms, int) else -1


def _read(data: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SettingError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise SettingError(f"expected a JSON object, found {type(document).__name__}")
    if document.get("format") != FORMAT:
        raise SettingError(f"expected format {FORMAT}, found {str(document.get('format'))[:20]}")
    return document


def _saved(part: Remembers) -> bytes:
    try:
        saved = orjson.dumps(dict(part.remembers()))
    except Exception:
        return b""
    return saved if len(saved) <= MAX_PART_BYTES else b""
