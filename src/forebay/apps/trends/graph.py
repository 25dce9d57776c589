"""The Flink graph of `trends`: clock, counts by shard of posts, rates by shard of terms, one book."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyflink.datastream import DataStream

from forebay.apps.graph import InferenceOptions, with_answers
from forebay.apps.trends.reason import ReasonProgram
from forebay.apps.trends.settings import Trends, to_prompt_event, to_result, why
from forebay.apps.trends.stages import BookStage, CountStage, RateStage, event_of, post_bytes
from forebay.apps.trends.values import TrendSettings
from forebay.flink.event_time import Clocked, clocked
from forebay.flink.infer import InferenceStreams
from forebay.flink.keying import TextField
from forebay.flink.stages import StageFunction, staged
from forebay.flink.thread_mode import check_environment
from forebay.records import Event
from forebay.stateful.stream_time import Tolerance


@dataclass(frozen=True, slots=True)
class Post:
    text: TextField

    def __call__(self, event: Event) -> bytes:
        assert event.time_ms is not None
        return post_bytes(event.time_ms, self.text(event))


def _count(shards: int, settings: TrendSettings, shard: int) -> CountStage:
    return CountStage(settings, shard, shards)


def _rate(shards: int, settings: TrendSettings, shard: int) -> RateStage:
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
    """Detect trends in a stream of encoded records.

    Messages carry `TrendEvent`s as JSON behind the key; refused records are a separate output. Events depend
    only on the posts and their order. `shards` is fixed for the life of a pipeline, `parallelism` may change.
    Raises `SettingError` if Python would run in worker processes.
    """
    check_environment(stream.get_execution_environment())
    posts = clocked(stream, Post(text), tolerance=tolerance, shards=shards, name=f"{name}-clock")
    counts = staged(
        posts.messages,
        StageFunction(
            partial(_count, shards), settings, shards=shards, next_shards=shards, emits_results=False
        ),
        parallelism=parallelism,
        name=f"{name}-counts",
    )
    rates = staged(
        counts,
        StageFunction(partial(_rate, shards), settings, shards=shards, next_shards=1, emits_results=False),
        parallelism=parallelism,
        name=f"{name}-rates",
    )
    events = staged(
        rates,
        StageFunction(_book, settings, shards=1, next_shards=1, open_now=BookStage.open_now),
        parallelism=1,
        name=f"{name}-book",
    )
    return Clocked(events, posts.refused)


def trends(settings: Trends, stream: DataStream, parts: InferenceOptions) -> InferenceStreams:
    """Run `trends` on encoded records in the order of a source.

    Results are trend events, each exactly once, and the model's reasons. Dead letters are refused posts and
    failed questions. `parts.shards` counts shards of posts and of terms, and is fixed for the life of a
    pipeline.
    """
    found = trend_events(
        stream,
        settings.find,
        TextField(settings.text),
        tolerance=settings.tolerance,
        shards=parts.shards,
        parallelism=parts.parallelism or 1,
        name=parts.name,
    )
    return with_answers(
        found,
        parts,
        read=event_of,
        to_result=to_result,
        question=to_prompt_event,
        key=_trend,
        answered=why,
        program=ReasonProgram(),
        asks=settings.labels,
    )


def _trend(event: Event) -> str:
    return str(event.fields["trend"])
