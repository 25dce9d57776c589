"""Settings of sources and sinks, and how they add themselves to a Flink job.

Flink is imported only when a stream is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, BeforeValidator, Field

from forebay.connectors.event_time import EventTime, zone_of
from forebay.connectors.formats import groups_of
from forebay.errors import SettingError
from forebay.fields import FieldPath, Model, PositiveInt, Secret, url, wrong
from forebay.records import DeadLetter, Event
from forebay.settings import read_secret

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, StreamExecutionEnvironment

Problem = tuple[str, str]
"""The path of a key in the pipeline file, and its mistake."""
RESULTS, DEAD_LETTERS, ASSIGNMENTS = "results", "dead-letters", "assignments"
HIDDEN_QUERY = "..."


class PipelineView(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def parallelism(self) -> int: ...

    @property
    def event_time(self) -> object | None: ...

    def sinks(self) -> Mapping[str, SinkSettings]: ...


@dataclass(frozen=True, slots=True)
class Written:
    """`job`: its id, empty if unknown. `transactions`: part of the ids of Kafka transactions. `run`: the id
    of counts, if the output cannot be counted afterwards."""

    what: str
    pipeline: str
    job: str = ""
    transactions: str = ""
    run: str = ""
    grows: bool = False


class ConnectorSettings(Model):
    type: str = Field(description="Name of the connector.")
    bound: ClassVar[frozenset[str] | None] = None
    """Keys that must not change when a job resumes. None: all."""

    def summary(self) -> str:
        """One line, without secrets."""
        return self.type

    def check(self, key: str) -> None:
        """Raise `SettingError` if a requirement is missing; blocks. `key`: the path of these settings in the
        file."""

    def check_secrets(self, key: str) -> None:
        """Raise `SettingError` if a secret is missing on this machine."""
        for name, secret in secrets_in(self):
            try:
                read_secret(secret.ref())
            except SettingError as error:
                raise SettingError(f"{key}.{name}: {error}") from None

    def fingerprint(self) -> dict[str, Any]:
        values = self.model_dump(mode="json", by_alias=True)
        kept = values if self.bound is None else {name: values[name] for name in values if name in self.bound}
        return {"type": self.type, **kept}


class SourceSettings(ConnectorSettings):
    uid: ClassVar[str] = "source"
    """Flink finds the source's state by it."""

    def problems(self, pipeline: PipelineView) -> Iterator[Problem]:
        return iter(())

    def readers(self, pipeline: PipelineView) -> int:
        return 1

    def first_records(self) -> Iterator[Event | DeadLetter]:
        """Available before the start; must not block or have side effects."""
        return iter(())

    def warnings(self) -> list[str]:
        """Blocks."""
        return []

    def why_unread(self) -> str:
        """Why a running pipeline reads nothing new, if known. Blocks for some seconds."""
        return ""

    def stream(self, env: StreamExecutionEnvironment, pipeline: PipelineView) -> DataStream:
        """The encoded events and dead letters. Raises `SettingError`."""
        raise NotImplementedError


class SinkSettings(ConnectorSettings):
    takes_dead_letters: ClassVar[bool] = True
    subtasks: ClassVar[int | None] = None
    """Number of writers; None: as many as the operator before it."""

    def directory(self) -> str | None:
        """Created before the start; None: no directory."""
        return None

    def attach(self, records: DataStream, written: Written) -> DataStream | None:
        """Add the writer of the encoded records to the job.

        Returns encoded dead letters of rejected results; a sink of dead letters must reject none.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Connector:
    """The sink is offered under `sink.type` and, if it accepts them, `dead_letters.type`."""

    source: type[SourceSettings] | None = None
    sink: type[SinkSettings] | None = None


PUBLIC_HEADERS = frozenset(
    ("accept", "accept-encoding", "accept-language", "cache-control", "content-type", "origin", "user-agent")
)
"""Every other header may hold a secret."""
WebSocketUrl = Annotated[str, url(("ws", "wss"))]
OneCharacter = Annotated[str, Field(min_length=1, max_length=1)]


def _public(headers: Any) -> Any:
    if isinstance(headers, dict):
        for name, value in headers.items():
            if str(name).lower() not in PUBLIC_HEADERS and not isinstance(value, dict | Secret):
                raise wrong(
                    f"{str(name)[:60]!r}: expected {{env: NAME}} or {{file: PATH}}, for it may hold a "
                    f"secret; a text is taken for {', '.join(sorted(PUBLIC_HEADERS))}"
                )
    return headers


HeaderText = Annotated[str, Field(max_length=4096, pattern=r"^[\x20-\x7e]*$")]
HeaderName = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
Headers = Annotated[dict[HeaderName, HeaderText | Secret], BeforeValidator(_public), Field(repr=False)]


def _time_format(value: str) -> str:
    try:
        EventTime("time", value)
    except SettingError as error:
        raise wrong(f"expected another format; {error}") from None
    if "%" in value:
        try:
            datetime.strptime("", value)
        except (ValueError, re.error) as error:
            # "time data …" only means that "" does not match; every other error is the pattern's.
            if not str(error).startswith("time data"):
                raise wrong(f"expected a pattern that strptime takes; {error}") from None
    return value


def _time_zone(value: str) -> str:
    try:
        zone_of(value)
    except SettingError as error:
        raise wrong(str(error).removeprefix("time zone: ")) from None
    return value


def _pattern(value: str) -> str:
    try:
        groups_of(value)
    except ValueError as error:
        raise wrong(f"expected a regular expression of RE2 with named groups: {error}") from None
    return value


LinePattern = Annotated[str, Field(max_length=2000), AfterValidator(_pattern)]


def check_line_time(time: str | None, pattern: str | None) -> None:
    """Raise `ValueError` if `time` is not a field of the lines."""
    if time is not None and time not in (("text",) if pattern is None else groups_of(pattern)):
        raise wrong(
            f"expected a field of the lines as 'time', found {time}; name a part of a line with it: "
            rf"line_pattern: '(?P<{time}>\S+) (?P<text>.*)'"
        )


class Timed(SourceSettings):
    """Base of sources of recorded events."""

    time: FieldPath | None = Field(
        None, description="Field that holds an event's time (dots for nesting: `meta.dt`); null: it has none."
    )
    time_format: Annotated[str, AfterValidator(_time_format)] = Field(
        "iso8601",
        description="How `time` is written: `iso8601`, `unix_s`, `unix_ms`, `unix_us`, `unix_ns` (numbers "
        "since 1970), or a pattern of Python's `strptime` such as `%d/%m/%Y %H:%M`.",
    )
    time_zone: Annotated[str, Field(max_length=100), AfterValidator(_time_zone)] = Field(
        "UTC",
        description="Time zone of times without one: a name of the IANA database such as `Europe/Berlin`. "
        "`%Z` in `time_format` takes its abbreviations (`EST`, `EDT` of `America/New_York`), UTC and GMT.",
    )
    limit: PositiveInt | None = Field(None, description="Stop after this many records; null: no limit.")
    max_record_bytes: PositiveInt = Field(
        1_048_576, le=16_777_216, description="A longer record becomes a dead letter."
    )

    def event_time(self) -> EventTime | None:
        return EventTime(self.time, self.time_format, self.time_zone) if self.time is not None else None

    def problems(self, pipeline: PipelineView) -> Iterator[Problem]:
        if pipeline.event_time is not None and self.time is None:
            yield (
                "event_time",
                "expected source.time with event_time, found none; name the field with the time",
            )


class Enveloped(Timed):
    """Base of sources of JSON objects."""

    payload: FieldPath | None = Field(
        None,
        description="Field of the value that holds the record (dots for nesting): `after` or `payload.after` "
        "for Debezium, `data` for CloudEvents. The event then has the record's fields, and as `envelope` the "
        "rest of the object that holds it (`time: envelope.ts_ms`). A value without a record, such as a "
        "deletion, becomes a dead letter. null: the value is the record.",
    )


def secrets_in(value: object, path: str = "") -> Iterator[tuple[str, Secret]]:
    """Each with the path of its key."""
    if isinstance(value, Secret):
        yield path, value
    elif isinstance(value, Model | Mapping):
        parts = value if isinstance(value, Model) else value.items()
        for name, part in parts:
            yield from secrets_in(part, f"{path}.{name}" if path else str(name))


def without_query(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query=HIDDEN_QUERY if parts.query else "", fragment=""))
