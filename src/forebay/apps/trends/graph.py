"""The application `trends` as a Flink graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.apps.graph import InferenceOptions, with_answers
from forebay.apps.trends.operators import trend_events
from forebay.apps.trends.settings import PROMPT, SCHEMA, Trends, to_prompt_event, to_result, why
from forebay.apps.trends.stages import event_of
from forebay.detect.stream_time import Tolerance
from forebay.flink.infer import InferenceStreams
from forebay.flink.keying import TextField
from forebay.records import Event

if TYPE_CHECKING:
    from pyflink.datastream import DataStream


def trends(settings: Trends, stream: DataStream, parts: InferenceOptions) -> InferenceStreams:
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
    return with_answers(
        found,
        parts,
        read=event_of,
        told=to_result,
        question=to_prompt_event,
        key=_trend,
        answered=why,
        prompt=PROMPT,
        schema=SCHEMA,
        asks=settings.labels,
    )


def _trend(event: Event) -> str:
    return str(event.fields["trend"])
