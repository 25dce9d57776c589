"""The application `trends` as a Flink graph: a clock, counts by shard of posts, rates by shard of terms, one
book, then the question why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyflink.datastream import DataStream

from forebay.apps.graph import InferenceOptions, with_answers
from forebay.apps.trends.settings import PROMPT, SCHEMA, Trends, to_prompt_event, to_result, why
from forebay.apps.trends.stages import BookStage, CountStage, RateStage, event_of, post_bytes
from forebay.apps.trends.values import TrendSettings
from forebay.detect.stream_time import Tolerance
from forebay.flink.infer import InferenceStreams
from forebay.flink.keying import TextField
from forebay.flink.stages import StageFunction, staged
from forebay.flink.stream_clock import Clocked, clocked
from forebay.flink.thread_mode import check_environment
from forebay.records import Event


@dataclass(frozen=True, slots=True)
class Post:
    """An event as the first stage takes it."""

    text: TextField

    def __call__(self, event: Event) -> bytes:
        assert event.time_ms is not None
        return post_bytes(event.time_ms, self.text(event))


def _count(settings: TrendSettings, shards: int, shard: int) -> CountStage:
    return CountStage(settings, shard, shards)


def _rate(settings: TrendSettings, shards: int, shard: int) -> RateStage:
    return RateStage(settings, shards)


def _book(settings: TrendSettings, shard: int) -> BookStage:
    return BookStage(settings)


def trend_events(
    stream: DataStream,
    settings: TrendSettings,
    text: TextField,
    *,
    tolerance: Tolerance,
    shards: int,
    parallelism: int,
    name: str,
) -> Clocked:
    """The trends of a stream of encoded records: messages whose bytes behind the key are `TrendEvent`s as
    JSON, and the records that were refused.

    Exactly once: the events depend on the posts and their order alone. `shards` is the same for the life of a
    pipeline, `parallelism` may change. Raises `SettingError` where Python would run in worker processes.
    """
    check_environment(stream.get_execution_environment())
    posts = clocked(stream, Post(text), tolerance=tolerance, shards=shards, name=f"{name}-clock")
    counts = staged(
        posts.messages,
        StageFunction(partial(_count, settings, shards), shards=shards, next_shards=shards),
        parallelism=parallelism,
        name=f"{name}-counts",
    )
    rates = staged(
        counts,
        StageFunction(partial(_rate, settings, shards), shards=shards, next_shards=1),
        parallelism=parallelism,
        name=f"{name}-rates",
    )
    events = staged(
        rates,
        StageFunction(partial(_book, settings), shards=1, next_shards=1),
        parallelism=1,
        name=f"{name}-book",
    )
    return Clocked(events, posts.refused)


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
