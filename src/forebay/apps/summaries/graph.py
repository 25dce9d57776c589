"""Puts summaries into a Flink job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.apps.graph import InferenceOptions
from forebay.apps.summaries.settings import MAX_STATE_BYTES, Summaries
from forebay.flink.infer import DEFAULT_SHARDS, InferenceStreams, infer_stateful
from forebay.flink.keying import EventText, ToEvent
from forebay.flink.request_handler import InferenceSpec

if TYPE_CHECKING:
    from pyflink.datastream import DataStream


def summarise(
    stream: DataStream,
    call: InferenceSpec,
    settings: Summaries | None = None,
    *,
    key: EventText | None,
    to_event: ToEvent | None = None,
    id: EventText | None = None,
    capacity: int = 64,
    shards: int = DEFAULT_SHARDS,
    event_time: bool = True,
    parallelism: int | None = None,
    name: str = "summary",
) -> InferenceStreams:
    """Summarise what `stream` says under each `key`, window by window, as `settings` say.

    `stream` has timestamps and watermarks. A result's `answer` is a summary (`Summary.to_json`), its time the
    last millisecond of the window; an event that no summary has is a dead letter. Prompt, schema and sampling
    of `call` are not used. Calls of one key are made one after another, those of different keys side by side.
    The rest is as for `infer_stateful`. Raises `SettingError` where the settings contradict each other.
    """
    return infer_stateful(
        stream,
        (settings or Summaries()).program(event_time=event_time),
        call,
        key=key,
        to_event=to_event,
        id=id,
        capacity=capacity,
        max_state_bytes=MAX_STATE_BYTES,
        shards=shards,
        event_time=event_time,
        parallelism=parallelism,
        name=name,
    )


def build(settings: Summaries, stream: DataStream, parts: InferenceOptions) -> InferenceStreams:
    """The summaries of a pipeline."""
    return summarise(stream, settings=settings, **vars(parts))
