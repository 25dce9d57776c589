"""Options of a measured pipeline, and the events of its load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any, Literal

import orjson

from forebay.bench.load.schedules import MAX_SECONDS, Constant, Schedule, check_requests
from forebay.clients.s3.location import S3Path
from forebay.connectors.formats import MAX_RECORD_BYTES
from forebay.connectors.generator.posts import post, topic_of
from forebay.errors import SettingError

Until = Literal["answered", "committed"]

MAX_EVENTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSlo:
    """An event's objective: `until` at most `within_s` after its time."""

    within_s: float
    until: Until = "committed"

    def __post_init__(self) -> None:
        if not 0 < self.within_s <= MAX_SECONDS:
            raise SettingError(f"--slo-event-ms: expected more than 0, found {self.within_s * 1000:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLoad:
    """The load of one run. `data`: a JSON-lines file, repeated; None: generated posts. `seed` decides times
    and posts."""

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
    """The pipeline to measure.

    `pipeline`: a file, or its content; source, sinks and checkpoint folder are replaced. `settings`:
    `key.in.the.file=VALUE`. `engine`: URLs; without any here or in the file, a local engine is started.
    `state`: an address in an object store for checkpoints, deleted at the end. `warm_events`: uncounted.
    `patience_s`: wait for commits after the last event.
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


ID, DUE_US = "forebay_event", "forebay_due_us"
"""Fields added to each event: its id, and its time in microseconds since 1970."""
MAX_BYTES = 1 << 30


def read_data(path: Path) -> list[dict[str, Any]]:
    """At most 1 GiB."""
    found = []
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SettingError(f"--data: {path} has more than {MAX_BYTES >> 20} MiB; split it")
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.append(_object(path, number, line))
    except OSError as error:
        raise SettingError(f"--data: {path} cannot be read: {error.strerror}") from None
    if not found:
        raise SettingError(f"--data: {path} holds no event")
    return found


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    if len(line) > MAX_RECORD_BYTES:
        raise SettingError(f"--data: {path}:{number} is longer than {MAX_RECORD_BYTES} bytes")
    try:
        value = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise SettingError(f"--data: {path}:{number}: expected a JSON object: {error.msg}") from None
    if not isinstance(value, dict):
        raise SettingError(f"--data: {path}:{number}: expected a JSON object, found {str(value)[:60]!r}")
    return value


def fields_of(
    data: Sequence[dict[str, Any]] | None, count: int, seed: int, nonce: str
) -> Iterator[dict[str, Any]]:
    """`data` repeated, or made-up posts that begin with `nonce`, so that no prefix cache and no journal
    holds them."""
    if data is not None:
        return islice(cycle(data), count)
    posts = (dict(post(seed, index, topic_of(seed, index))) for index in range(count))
    return ({**each, "text": f"{nonce}-{index} {each['text']}"} for index, each in enumerate(posts))


def due_offsets(load: EventLoad) -> list[float]:
    """Seconds after the start. Raises `SettingError` as schedules do."""
    return load.schedule.due_s(load.events, Random(f"schedule {load.seed}"))


def event_lines(
    ids: Sequence[str], due_us: Sequence[int], fields: Iterable[dict[str, Any]]
) -> Iterator[bytes]:
    for id, due, own in zip(ids, due_us, fields, strict=True):
        yield b"%d %b %b\n" % (due, id.encode(), orjson.dumps({**own, ID: id, DUE_US: due}))
