"""The application `trends` as a Flink graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.applications.parts import Parts
from forebay.applications.trends import PROMPT, SCHEMA, Trends, question, told, why
from forebay.codec import decode, encode
from forebay.detect.stream_time import Tolerance
from forebay.detect.trend_stages import event_of
from forebay.operators.infer import Inferred, infer
from forebay.operators.inference import BYTES
from forebay.operators.stages import payload
from forebay.operators.texts import TextField
from forebay.operators.trends import trend_events
from forebay.records import Event

if TYPE_CHECKING:
    from pyflink.datastream import DataStream


def trends(settings: Trends, stream: DataStream, parts: Parts) -> Inferred:
    """The trends of `stream`, which holds encoded records in the order of a source.

    Results are what happened to trends, each exactly once, and what the model says of why; refused posts and
    questions that were given up are dead letters. `parts.shards` is the number of shards of posts and of
    terms, the same for the life of a pipeline; `parts.parallelism` may change.
    """
    found = trend_events(
        stream,
        settings.find,
        TextField(settings.text),
        tolerance=Tolerance(round(settings.late_s * 1000), round(settings.ahead_s * 1000)),
        shards=parts.shards,
        parallelism=parts.parallelism or 1,
        name=parts.name,
    )
    events = found.messages.map(_told, BYTES).name("trends").set_parallelism(1)
    if not settings.labels:
        return Inferred(events, found.refused)
    asked = found.messages.flat_map(_questions, BYTES).name("questions").set_parallelism(1)
    answered = infer(
        asked,
        replace(parts.call, prompt=PROMPT, schema=SCHEMA),
        key=_trend,
        capacity=parts.capacity,
        shards=parts.shards,
        parallelism=parts.parallelism,
        name=parts.name,
    )
    whys = answered.results.map(_why, BYTES).name("why")
    return Inferred(events.union(whys), found.refused.union(answered.dead_letters))


def _told(value: bytes) -> bytes:
    return encode(told(event_of(payload(value))))


def _questions(value: bytes) -> Iterator[bytes]:
    asked = question(event_of(payload(value)))
    if asked is not None:
        yield encode(asked)


def _why(value: bytes) -> bytes:
    return encode(why(decode(bytes(value))))


def _trend(event: Event) -> str:
    return str(event.fields["trend"])
