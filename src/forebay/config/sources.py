"""Where events come from: one class per `type`. A new source is a class here and its name in `Source`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict, model_validator

from forebay.config.fields import (
    AnyInt,
    Headers,
    HttpUrl,
    LocalPath,
    Model,
    NotNegativeFloat,
    OneCharacter,
    PositiveFloat,
    PositiveInt,
    Secret,
    Switch,
    Timed,
    WebSocketUrl,
    wrong,
)
from forebay.config.kafka import KafkaSource
from forebay.settings import SecretRef

PRESETS: dict[str, dict[str, Any]] = {
    "wikimedia": {
        "url": "https://stream.wikimedia.org/v2/stream/recentchange",
        "time": "meta.dt",
        "time_format": "iso8601",
    },
    "jetstream": {
        "url": "wss://jetstream2.us-east.bsky.network/subscribe?wantedCollections=app.bsky.feed.post",
        "time": "time_us",
        "time_format": "unix_us",
    },
}
"""What a `preset` fills in; a key that the file gives wins."""


class Replay(Model):
    """Records at the distances in time at which they were recorded."""

    speed: PositiveFloat = Field(1.0, description="How many times faster than recorded.")


class BurstSpec(Model):
    """A stretch of a generator's stream in which many speak of one thing."""

    start_s: NotNegativeFloat = Field(description="Start, in seconds of event time after the first event.")
    duration_s: PositiveFloat = Field(description="Length in seconds of event time.")
    factor: PositiveFloat = Field(4.0, description="Rate during the burst as a multiple of `rate`.")
    topic: Literal["outage", "weather", "football", "transit", "food", "music", "school", "pets"] = Field(
        "outage", description="Topic of the burst's posts."
    )
    share: Annotated[float, Strict(), Field(ge=0, le=1)] = Field(
        0.8, description="Share of the burst's posts that are about the topic."
    )


class FileSource(Timed):
    """What JSONL and CSV files share."""

    path: LocalPath = Field(
        description="A file, or a directory whose files are read in the order of their names; "
        "relative to the pipeline file."
    )
    follow: Switch = Field(
        False,
        description="true: go on watching the directory at `path` for new files, which are taken as they "
        "appear, without end (and so without `limit`); false: end with the last record.",
    )
    replay: Replay | None = Field(
        None,
        description="`{speed: 10}` replays at the recorded times, ten times faster; null: as fast as the "
        "engine takes it. Needs `time`.",
    )


class JsonlSource(FileSource):
    """One JSON object a line."""

    type: Literal["jsonl"]


class CsvSource(FileSource):
    """Comma-separated values; every field is a text."""

    type: Literal["csv"]
    delimiter: OneCharacter = Field(",", description="Character between fields.")
    columns: tuple[str, ...] | None = Field(
        None, description="Names of the columns; null: the first line of each file holds them."
    )


class GeneratorSource(Model):
    """Made-up posts of a social network: same seed, same posts."""

    type: Literal["generator"]
    seed: AnyInt = Field(1, description="Seed of the random numbers.")
    rate: PositiveFloat = Field(20.0, le=1_000_000, description="Events per second of event time.")
    count: PositiveInt | None = Field(None, description="How many events; null: without end.")
    burst: BurstSpec | None = Field(None, description="A burst planted in the stream.")
    paced: Switch = Field(
        True,
        description="true: each event at its time, `rate` a second; false: as fast as the engine takes it.",
    )


class FeedSource(Timed):
    """What live feeds share. Both reconnect by themselves and go on from a cursor held in state."""

    headers: Headers = Field(
        default_factory=dict,
        description="Headers of the request. A text for harmless ones such as `User-Agent`; for others, such "
        "as `Authorization`, where the value is: `{env: NAME}` or `{file: PATH}`. They go to the origin of "
        "`url` only: a redirect to another one is refused.",
    )
    idle_timeout_s: PositiveFloat = Field(60.0, description="Reconnect after this long without a byte.")

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        preset = data.get("preset", cls.model_fields["preset"].default)
        return {**PRESETS.get(preset, {}), **data} if isinstance(preset, str) else data

    def header_values(self) -> dict[str, str | SecretRef]:
        """The headers as a feed takes them: secrets named, not held."""
        return {
            name: value.ref() if isinstance(value, Secret) else value for name, value in self.headers.items()
        }


class SseSource(FeedSource):
    """A feed of server-sent events; the cursor is the last event's id."""

    type: Literal["sse"]
    preset: Literal["wikimedia"] | None = Field(
        None,
        description="`wikimedia`: recent changes of all wikis; fills in `url`, `time` and `time_format`.",
    )
    url: HttpUrl = Field(description="Address of the feed.", json_schema_extra={"derived": "the preset's"})


class WebSocketSource(FeedSource):
    """A feed over a WebSocket that speaks Jetstream's protocol; the cursor is a message's `time_us`."""

    type: Literal["websocket"]
    preset: Literal["jetstream"] = Field(
        "jetstream", description="Posts on Bluesky; fills in `url`, `time` and `time_format`."
    )
    url: WebSocketUrl = Field(
        description="Address of the feed.", json_schema_extra={"derived": "the preset's"}
    )


class DeadLetterSource(Model):
    """Dead letters, fed in again as the records that they were."""

    type: Literal["dead_letters"]
    path: LocalPath = Field(description="The dead letters' file or directory; relative to the pipeline file.")
    format: Literal["jsonl", "csv"] = Field("jsonl", description="What the records were.")
    delimiter: OneCharacter = Field(",", description="For csv: character between fields.")
    columns: tuple[str, ...] | None = Field(None, description="For csv: names of the columns; needed there.")
    limit: PositiveInt | None = Field(None, description="Stop after this many records; null: no limit.")
    max_record_bytes: PositiveInt = Field(
        1_048_576, le=16_777_216, description="A longer record becomes a dead letter again."
    )

    def model_post_init(self, context: Any, /) -> None:
        if self.format == "csv" and self.columns is None:
            raise wrong("expected 'columns' with format: csv; a dead letter does not hold its file's header")


Source = Annotated[
    JsonlSource | CsvSource | GeneratorSource | SseSource | WebSocketSource | KafkaSource | DeadLetterSource,
    Field(discriminator="type"),
]
