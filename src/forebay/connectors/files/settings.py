"""Settings of file sources, the JSON lines sink and standard output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from forebay.clients.s3.location import location_of
from forebay.connectors.base import DEAD_LETTERS as LETTERS
from forebay.connectors.base import (
    Connector,
    Enveloped,
    LinePattern,
    OneCharacter,
    PipelineView,
    Problem,
    SinkSettings,
    SourceSettings,
    Timed,
    Written,
    check_line_time,
)
from forebay.connectors.files.unpack import UTF_8, canonical_encoding
from forebay.connectors.formats import Format
from forebay.connectors.kafka.registry import RegistrySpec
from forebay.errors import SettingError
from forebay.fields import FieldPath, Folder, LocalPath, Model, PositiveFloat, PositiveInt, Switch, wrong
from forebay.records import DeadLetter, Event

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, StreamExecutionEnvironment

    from forebay.connectors.files.source import Files


def _encoding(value: str) -> str:
    try:
        return canonical_encoding(value)
    except SettingError as error:
        raise wrong(str(error).removeprefix("encoding: ")) from None


LOOK_S = 2.0


class Replay(Model):
    """Replay records at their recorded intervals."""

    speed: PositiveFloat = Field(1.0, description="How many times faster than recorded.")


class FileSource(Timed):
    """Base of files of JSON lines, CSV and text."""

    # Where the last file ends follows from the first run's limit.
    bound: ClassVar[frozenset[str] | None] = frozenset(("path", "follow", "encoding", "limit"))

    path: LocalPath = Field(
        description="A file, or a directory whose files are read in the order of their names; "
        "relative to the pipeline file."
    )
    follow: Switch = Field(
        False,
        description="true: keep watching the directory at `path`, without end (and so without `limit`), "
        "and read files that appear or are replaced, and lines that are added; false: end with the last "
        "record.",
    )
    encoding: Annotated[str, AfterValidator(_encoding)] = Field(
        UTF_8,
        description="Encoding of the files: `utf-8`, `utf-16`, `latin-1`, `cp1252`, `shift_jis`, … A record "
        "is kept as UTF-8.",
    )
    replay: Replay | None = Field(
        None,
        description="`{speed: 10}` replays at the recorded times, ten times faster; null: as fast as the "
        "engine takes it. Needs `time`.",
    )

    def format(self) -> Format:
        return Format(time=self.event_time(), max_record_bytes=self.max_record_bytes)

    def files(self) -> Files:
        from forebay.connectors.files.source import Files

        return Files(
            Path(self.path), self.format(), follow=self.follow, limit=self.limit, encoding=self.encoding
        )

    def summary(self) -> str:
        return f"{self.type}: {self.path}{'' if self.encoding == UTF_8 else f' ({self.encoding})'}"

    def problems(self, pipeline: PipelineView) -> Iterator[Problem]:
        if self.replay is not None:
            if self.time is None:
                yield (
                    "source.replay",
                    "expected source.time with replay, found none; name the field with the time",
                )
            if self.follow:
                yield (
                    "source.replay",
                    "expected null with follow: true; a growing directory is read as it grows",
                )
        yield from super().problems(pipeline)

    def check(self, key: str) -> None:
        check_files(key, self.files())

    def first_records(self) -> Iterator[Event | DeadLetter]:
        from forebay.connectors.files.source import first_records

        return iter(()) if self.follow else first_records(self.files())

    def warnings(self) -> list[str]:
        from forebay.connectors.files.reader import header_warnings, skipped_warnings

        files = self.files()
        return [*skipped_warnings(files), *([] if self.follow else header_warnings(files))]

    def why_unread(self) -> str:
        from forebay.connectors.files.listing import folder_problem

        if not self.follow:
            return ""
        found: list[str] = []
        look = Thread(target=lambda: found.append(folder_problem(Path(self.path))), daemon=True)
        look.start()
        # A network drive that is gone blocks for minutes.
        look.join(LOOK_S)
        return found[0] if found else ""

    def stream(self, env: StreamExecutionEnvironment, pipeline: PipelineView) -> DataStream:
        from forebay.connectors.files.source import ReplaySpeed, file_source, replay_source

        if self.replay is not None:
            return replay_source(env, self.files(), ReplaySpeed(self.replay.speed))
        return file_source(env, self.files())


class JsonlSource(FileSource, Enveloped):
    """One JSON object a line; blank lines are skipped."""

    type: Literal["jsonl"]

    def format(self) -> Format:
        return replace(super().format(), payload=self.payload)


class CsvSource(FileSource):
    """Comma-separated values; every field is a text."""

    # With other columns, or none, the next row of a half-read file would be taken for its header.
    bound: ClassVar[frozenset[str] | None] = frozenset(("path", "follow", "encoding", "limit", "columns"))

    type: Literal["csv"]
    delimiter: OneCharacter = Field(",", description="Character between fields.")
    columns: tuple[str, ...] | None = Field(
        None, description="Names of the columns; null: the first row of each file holds those of this file."
    )

    def fingerprint(self) -> dict[str, Any]:
        found = super().fingerprint()
        # It has read the header of a half-read file.
        return found if self.columns is not None else {**found, "delimiter": self.delimiter}

    def format(self) -> Format:
        form = super().format()
        return replace(form, kind="csv", columns=self.columns or (), delimiter=self.delimiter)

    def has_one_header(self) -> bool:
        """Blocks."""
        from forebay.connectors.files.lines import files_of

        return self.columns is not None or len(list(islice(files_of(Path(self.path)), 2))) == 1


class TextSource(FileSource):
    """Lines of text, such as logs; blank lines are skipped."""

    type: Literal["text"]
    line_pattern: LinePattern | None = Field(
        None,
        description="A regular expression (RE2) whose named groups become fields: `(?P<at>\\S+) "
        "(?P<level>\\w+) (?P<text>.*)`. It must match from the start of a line, which is a dead letter "
        "otherwise; a group that takes no part is empty. null: the event has one field, `text`.",
    )

    def model_post_init(self, context: Any, /) -> None:
        check_line_time(self.time, self.line_pattern)

    def format(self) -> Format:
        return replace(super().format(), kind="text", pattern=self.line_pattern)


class DeadLetterSource(SourceSettings):
    """Dead letters in files, read again as the records that they were, under the same ids. For those in a
    topic use `kafka` with `dead_letters: true`.
    """

    bound: ClassVar[frozenset[str] | None] = frozenset(("path", "format", "limit"))

    type: Literal["dead_letters"]
    path: LocalPath = Field(description="The dead letters' file or directory; relative to the pipeline file.")
    format: Literal["jsonl", "text", "csv", "registry"] = Field(
        "jsonl",
        description="What the records were; `registry`: values of Kafka with a schema that a `registry` "
        "holds.",
    )
    registry: RegistrySpec | None = Field(
        None, description="The schema registry; needed with `format: registry`."
    )
    delimiter: OneCharacter = Field(",", description="For csv: character between fields.")
    columns: tuple[str, ...] | None = Field(None, description="For csv: names of the columns; needed there.")
    payload: FieldPath | None = Field(
        None, description="For jsonl: as `payload` of the source that the records came from."
    )
    line_pattern: LinePattern | None = Field(None, description="For text: as of the source of the lines.")
    limit: PositiveInt | None = Field(None, description="Stop after this many records; null: no limit.")
    max_record_bytes: PositiveInt = Field(
        1_048_576, le=16_777_216, description="A longer record becomes a dead letter again."
    )

    @model_validator(mode="before")
    @classmethod
    def _in_files(cls, given: Any) -> Any:
        if isinstance(given, dict) and "bootstrap" in given:
            raise wrong(
                "expected 'path'; dead letters in a topic need 'type: kafka' with 'dead_letters: true'"
            )
        return given

    def model_post_init(self, context: Any, /) -> None:
        if self.format == "csv" and self.columns is None:
            raise wrong("expected 'columns' with format: csv; a dead letter does not hold its file's header")
        if self.format in ("text", "csv") and self.payload is not None:
            raise wrong(
                f"expected no 'payload' with format: {self.format}; JSON objects are read with format: jsonl"
            )
        if self.format != "text" and self.line_pattern is not None:
            raise wrong(f"expected no 'line_pattern' with format: {self.format}; text has one")
        if (self.format == "registry") != (self.registry is not None):
            raise wrong("expected 'format: registry' and 'registry' together, found one of them")

    def files(self) -> Files:
        from forebay.connectors.files.source import Files

        form = Format(
            kind="jsonl" if self.format == "registry" else self.format,
            max_record_bytes=self.max_record_bytes,
            columns=self.columns or (),
            delimiter=self.delimiter,
            payload=self.payload,
            pattern=self.line_pattern,
        )
        registry = None if self.registry is None else self.registry.registry()
        return Files(Path(self.path), form, letters=True, limit=self.limit, registry=registry)

    def check_secrets(self, key: str) -> None:
        if self.registry is not None:
            self.registry.check(key)

    def summary(self) -> str:
        return f"{self.type}: {self.path}"

    def check(self, key: str) -> None:
        check_files(key, self.files())

    def first_records(self) -> Iterator[Event | DeadLetter]:
        from forebay.connectors.files.source import first_records

        # A registry may be unreachable now; the job waits for it.
        return iter(()) if self.registry is not None else first_records(self.files())

    def stream(self, env: StreamExecutionEnvironment, pipeline: PipelineView) -> DataStream:
        from forebay.connectors.files.source import file_source

        return file_source(env, self.files())


class JsonlSink(SinkSettings):
    """JSON lines, each exactly once, in files that grow with each checkpoint."""

    bound: ClassVar[frozenset[str] | None] = frozenset()

    type: Literal["jsonl"]
    path: Folder = Field(description="Directory, relative to the pipeline file, or `s3://bucket/prefix`.")

    def summary(self) -> str:
        return f"JSON lines in {self.path}"

    def fingerprint(self) -> dict[str, Any]:
        """A checkpoint commits lines in the place that they were written to."""
        place = location_of(self.path)
        where = "a folder" if isinstance(place, Path) else f"a path in s3://{place.bucket}"
        return {**super().fingerprint(), "path": where}

    def directory(self) -> str | None:
        return self.path

    def attach(self, records: DataStream, written: Written) -> None:
        from forebay.connectors.files.sink import JsonlFiles, jsonl_sink
        from forebay.connectors.formats import dead_letter_lines, result_lines

        lines = dead_letter_lines(records) if written.what == LETTERS else result_lines(records)
        place = location_of(self.path)
        # An object cannot grow.
        grows = written.grows and isinstance(place, Path)
        jsonl_sink(lines, JsonlFiles(place, written.job, grows), uid=written.what)


def check_files(key: str, files: Files) -> None:
    """Raises `SettingError`. Blocks."""
    from forebay.connectors.files.listing import check_kind
    from forebay.connectors.files.source import line_reader

    try:
        check_kind(files.path)
        if files.path.is_dir():
            next(files.path.iterdir(), None)
        else:
            with files.path.open("rb") as file:
                file.read(1)
    except OSError as error:
        raise SettingError(f"{key}.path: {files.path} cannot be read: {error.strerror}") from None
    try:
        line_reader(files)
    except SettingError as error:
        raise SettingError(f"{key}: {error}") from None


JSONL = Connector(JsonlSource, JsonlSink)
CSV = Connector(CsvSource)
TEXT = Connector(TextSource)
DEAD_LETTERS = Connector(DeadLetterSource)


class StdoutSink(SinkSettings):
    """JSON lines on standard output; lines since the last checkpoint are repeated after a recovery."""

    bound: ClassVar[frozenset[str] | None] = frozenset()
    takes_dead_letters: ClassVar[bool] = False
    subtasks: ClassVar[int | None] = 1

    type: Literal["stdout"]

    def summary(self) -> str:
        return "standard output"

    def attach(self, records: DataStream, written: Written) -> None:
        from forebay.connectors.formats import result_lines

        # One subtask: several would each print their number before every line.
        result_lines(records).print().name("standard output").set_parallelism(1)


STDOUT = Connector(sink=StdoutSink)
