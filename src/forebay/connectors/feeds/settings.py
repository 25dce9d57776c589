"""Settings of live feeds in a pipeline file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from forebay.connectors.base import Connector, Enveloped, Headers, PipelineView, WebSocketUrl, without_query
from forebay.connectors.formats import Format
from forebay.errors import SettingError
from forebay.fields import HttpUrl, PositiveFloat, Secret
from forebay.settings import SecretRef

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, StreamExecutionEnvironment

    from forebay.connectors.feeds.feed import Feed

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
"""The file's own keys win."""


class FeedSource(Enveloped):
    """Base of live feeds. They reconnect by themselves and resume from a cursor in state."""

    bound: ClassVar[frozenset[str] | None] = frozenset(("url",))

    headers: Headers = Field(
        default_factory=dict,
        description="Headers of the request. A text for harmless ones such as `User-Agent`; for others, such "
        "as `Authorization`, where the value is: `{env: NAME}` or `{file: PATH}`. Redirects to "
        "another origin than that of `url` are refused.",
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
        return {
            name: value.ref() if isinstance(value, Secret) else value for name, value in self.headers.items()
        }

    def feed(self) -> Feed:
        raise NotImplementedError

    def check_secrets(self, key: str) -> None:
        from forebay.connectors.feeds.feed import header_values

        try:
            header_values(self.header_values())
        except SettingError as error:
            raise SettingError(f"{key}.headers: {error}") from None

    def stream(self, env: StreamExecutionEnvironment, pipeline: PipelineView) -> DataStream:
        from forebay.connectors.feeds.source import Polled, polled_source

        form = Format(time=self.event_time(), max_record_bytes=self.max_record_bytes, payload=self.payload)
        return polled_source(env, Polled(self.feed(), form, limit=self.limit))


class SseSource(FeedSource):
    """A feed of server-sent events; the cursor is the last event's id.

    In templates, `sse.event` is the event's type and `sse.id` its id. If the event's data has a field `sse`,
    it is `sse.own`.
    """

    type: Literal["sse"]
    preset: Literal["wikimedia"] | None = Field(
        None,
        description="`wikimedia`: recent changes of all wikis; fills in `url`, `time` and `time_format`.",
    )
    url: HttpUrl = Field(description="Address of the feed.", json_schema_extra={"derived": "the preset's"})

    def summary(self) -> str:
        return f"{self.type}: {without_query(self.url)}"

    def feed(self) -> Feed:
        from forebay.connectors.feeds.sse import SseFeed

        return SseFeed(self.url, self.header_values(), self.max_record_bytes, self.idle_timeout_s)


class WebSocketSource(FeedSource):
    """A feed over a WebSocket that uses Jetstream's protocol; the cursor is the newest `time_us`."""

    type: Literal["websocket"]
    preset: Literal["jetstream"] = Field(
        "jetstream", description="Posts on Bluesky; fills in `url`, `time` and `time_format`."
    )
    url: WebSocketUrl = Field(
        description="Address of the feed.", json_schema_extra={"derived": "the preset's"}
    )

    def summary(self) -> str:
        return f"{self.type}: {without_query(self.url)}"

    def feed(self) -> Feed:
        from forebay.connectors.feeds.jetstream import JetstreamFeed

        return JetstreamFeed(self.url, self.header_values(), silence_s=self.idle_timeout_s)


SSE = Connector(SseSource)
WEBSOCKET = Connector(WebSocketSource)
