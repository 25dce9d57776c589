"""The applications as functions over streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

from pydantic import BaseModel
from pyflink.datastream import DataStream
from typing_extensions import Unpack

from forebay.api.inference import Inference
from forebay.api.objects import (
    ObjectStream,
    TextOf,
    ToEvent,
    encoded_events,
    key_templates,
    source_of,
    text_of,
)
from forebay.api.streams import Outputs, check_inference, outputs, refuse_prompt
from forebay.apps.graph import InferenceOptions, ProgramSettings
from forebay.apps.sessions import SessionsSpec
from forebay.apps.summaries.settings import SummarySpec
from forebay.apps.topics import graph as topics_graph
from forebay.apps.topics.embedding import OpenEmbedder
from forebay.apps.topics.settings import TopicsSpec
from forebay.apps.trends import graph as trends_graph
from forebay.apps.trends.settings import TrendsSpec
from forebay.documents import check_document
from forebay.flink.infer import DEFAULT_SHARDS, infer_stateful
from forebay.records import Result

Spec = TypeVar("Spec", bound=BaseModel)


class TrendsSettings(TypedDict, total=False):
    """The keys of the application `trends` in a pipeline file."""

    text: str
    late_s: float
    ahead_s: float
    labels: bool
    least_nats: float
    least_ratio: float
    least_posts: float


class TopicsSettings(TypedDict, total=False):
    """The keys of the application `topics` in a pipeline file."""

    text: str
    embeddings: Literal["minilm", "words"]
    threads: int
    wait_s: float
    topic_shards: int
    labels: bool
    birth_texts: int
    idle_s: float


@dataclass(frozen=True)
class TopicOutputs(Outputs):
    """The three output streams of `topics`.

    Attributes:
        results, dead_letters: As in `Outputs`.
        assignments: A result for each text: its topic when it arrived.

    >>> def found(posts: fb.ObjectStream[fb.Event]) -> fb.TopicOutputs:
    ...     return fb.topics(posts, fb.Inference("http://127.0.0.1:8100"), embeddings="words")
    """

    assignments: ObjectStream[Result]


class SummariesSettings(TypedDict, total=False):
    """The keys of the application `summary` in a pipeline file."""

    text: str
    author: str | None
    window: Literal["tumbling", "sliding", "session", "rolling"]
    size_s: float
    step_s: float
    gap_s: float
    every_s: float
    late: Literal["next", "side", "correct"]
    allowed_s: float
    correct_s: float
    work_tokens: int
    summary_tokens: int
    chunk_tokens: int
    partial_tokens: int
    fan_in: int
    lead_s: float
    ahead_s: float
    idle_s: float | None
    seed: int


class SessionsSettings(TypedDict, total=False):
    """The keys of the application `sessions` in a pipeline file."""

    text: str
    system: str
    budget_tokens: int
    idle_s: float | None


def trends(
    stream: DataStream,
    inference: Inference,
    *,
    to_event: ToEvent | None = None,
    shards: int = DEFAULT_SHARDS,
    parallelism: int | None = None,
    name: str = "trends",
    **settings: Unpack[TrendsSettings],
) -> Outputs:
    """Detect what goes viral in `stream`, and why: one result for each change of a trend, exactly once.

    Events need a time and a text, and a source of Forebay's. With `labels` (the default) the model is asked
    why a trend rises.

    Args:
        stream, to_event, shards, parallelism, name: As for `infer`.
        inference: The engine, without a prompt and a schema.
        settings: The keys of the application `trends` in a pipeline file.

    Raises the errors of `infer`.

    >>> import random
    >>> draw, words = random.Random(1), [f"word{number}" for number in range(300)]
    >>> posts = [(second, " ".join(draw.choices(words, k=6))) for second in range(900) for _ in range(4)]
    >>> posts += [(600 + draw.randrange(60), "big storm over Lisbon #storm") for _ in range(200)]
    >>> lines = [f'{{"at": {at}, "text": "{text}"}}' for at, text in sorted(posts)]
    >>> _ = Path("posts.jsonl").write_text("\\n".join(lines))
    >>> env = fb.environment()
    >>> posts = fb.read_jsonl(env, "posts.jsonl", time="at", time_format="unix_s")
    >>> found = fb.trends(posts, fb.Inference("http://127.0.0.1:8100"))
    >>> with found.results.execute_and_collect() as results:
    ...     sorted({result.answer["kind"] for result in results} & {"born", "ended", "why"})
    ['born', 'ended', 'why']
    """
    chosen = _settings(TrendsSpec, "trends", settings)
    parts = _options(inference, shards=shards, parallelism=parallelism, name=name)
    records = encoded_events(stream, to_event, "trends")
    return outputs(trends_graph.trends(chosen.settings(), records, parts), None)


def topics(
    stream: DataStream,
    inference: Inference,
    *,
    to_event: ToEvent | None = None,
    key: TextOf | None = None,
    id: TextOf | None = None,
    shards: int = DEFAULT_SHARDS,
    parallelism: int | None = None,
    name: str = "topics",
    embedder: OpenEmbedder | None = None,
    **settings: Unpack[TopicsSettings],
) -> TopicOutputs:
    """Detect the topics that emerge in `stream`: one result for each change of a topic, exactly once.

    Events need a text. With `labels` (the default) the model names each topic. The output has a third stream,
    `assignments`: a result with the id of each text, its `topic` and the `confidence`.

    Args:
        stream, to_event, id, shards, parallelism, name: As for `infer`.
        inference: The engine, without a prompt and a schema.
        key: A template or a function. With `topic_shards` above 1, only events of the same key are sure to
            share a topic.
        embedder: Opens an embedding of your own instead of the one in `embeddings`.
        settings: The keys of the application `topics` in a pipeline file.

    Raises the errors of `infer`, and `SetupError` if the embedding model is not installed;
    `embeddings="words"` needs none.

    >>> texts = ["storm over Lisbon", "heavy storm in Lisbon", "Lisbon storm damage"] * 5
    >>> env = fb.environment()
    >>> ask = fb.Inference("http://127.0.0.1:8100")
    >>> found = fb.topics(env.from_collection(texts), ask, embeddings="words")
    >>> with found.results.execute_and_collect() as results:
    ...     sorted({result.answer["kind"] for result in results} & {"born", "label"})
    ['born', 'label']
    """
    chosen = _settings(TopicsSpec, "topics", settings)
    parts = _options(inference, key=key, id=id, shards=shards, parallelism=parallelism, name=name)
    records = encoded_events(stream, to_event, "topics", templates=key_templates(key, id))
    given = topics_graph.topics(chosen, records, parts, embedder)
    assert given.assignments is not None
    plain = outputs(given, None)
    return TopicOutputs(plain.results, plain.dead_letters, ObjectStream(given.assignments, Result))


def summaries(
    stream: DataStream,
    inference: Inference,
    *,
    key: TextOf,
    to_event: ToEvent | None = None,
    id: TextOf | None = None,
    shards: int = DEFAULT_SHARDS,
    parallelism: int | None = None,
    name: str = "summary",
    **settings: Unpack[SummariesSettings],
) -> Outputs:
    """Summarise the events of each key, window by window.

    The stream needs timestamps and watermarks: pass `out_of_orderness_s` to `read_jsonl` or `read_kafka`. A
    result's `answer` is a summary as a dict, its time the last millisecond of the window. An event that is in
    no summary becomes a dead letter.

    Args:
        stream, to_event, id, shards, parallelism, name: As for `infer_stateful`.
        inference: The engine, without a prompt and a schema.
        key: A template or a function; events of the same key are summarised together.
        settings: The keys of the application `summary` in a pipeline file.

    Raises the errors of `infer`.

    >>> env = fb.environment()
    >>> tickets = fb.read_jsonl(env, "examples/tickets.jsonl", time="created_at", out_of_orderness_s=30)
    >>> ask = fb.Inference("http://127.0.0.1:8100", timeout_s=120)
    >>> hourly = fb.summaries(tickets, ask, key="{{ channel }}", author="user", size_s=3600)
    >>> with hourly.results.execute_and_collect() as results:
    ...     sorted({result.key for result in results})
    ['chat', 'email', 'phone']
    """
    chosen = _settings(SummarySpec, "summaries", settings)
    return _stateful(
        stream,
        inference,
        chosen,
        "summaries",
        key=key,
        to_event=to_event,
        id=id,
        shards=shards,
        event_time=True,
        parallelism=parallelism,
        name=name,
    )


def sessions(
    stream: DataStream,
    inference: Inference,
    *,
    key: TextOf,
    to_event: ToEvent | None = None,
    id: TextOf | None = None,
    shards: int = DEFAULT_SHARDS,
    event_time: bool = False,
    parallelism: int | None = None,
    name: str = "sessions",
    **settings: Unpack[SessionsSettings],
) -> Outputs:
    """Hold a conversation per key, with memory: each event is a message, each result a turn.

    Args:
        stream, to_event, id, shards, parallelism, name: As for `infer_stateful`.
        inference: The engine, without a prompt and a schema.
        key: A template or a function: who speaks.
        event_time: `idle_s` is in event time, and results carry their event's time; otherwise it is
            wall-clock time.
        settings: The keys of the application `sessions` in a pipeline file.

    Raises the errors of `infer`.

    >>> env = fb.environment()
    >>> said = env.from_collection([{"user": "ann", "text": "Hello."}, {"user": "ann", "text": "Who am I?"}])
    >>> talk = fb.sessions(said, fb.Inference("http://127.0.0.1:8100"), key="{{ user }}")
    >>> with talk.results.execute_and_collect() as results:
    ...     [result.answer["turn"] for result in results if "turn" in result.answer]
    [1, 2]
    """
    chosen = _settings(SessionsSpec, "sessions", settings).settings()
    return _stateful(
        stream,
        inference,
        chosen,
        "sessions",
        key=key,
        to_event=to_event,
        id=id,
        shards=shards,
        event_time=event_time,
        parallelism=parallelism,
        name=name,
    )


def _stateful(
    stream: DataStream,
    inference: Inference,
    settings: ProgramSettings,
    function: str,
    *,
    key: TextOf,
    to_event: ToEvent | None,
    id: TextOf | None,
    event_time: bool,
    **graph: Any,
) -> Outputs:
    _check(inference, function)
    encoded, read = source_of(stream, to_event, function, templates=key_templates(key, id))
    given = infer_stateful(
        encoded,
        settings.program(event_time=event_time),
        inference.spec(inference.served_model(settings.context_need(inference.sampling.max_tokens))),
        key=text_of(key, "key"),
        to_event=read,
        id=text_of(id, "id"),
        capacity=inference.capacity,
        max_state_bytes=settings.max_state_bytes,
        finding=settings.finding,
        event_time=event_time,
        **graph,
    )
    return outputs(given, None)


def _settings(spec: type[Spec], name: str, settings: Any) -> Spec:
    """Check as in a pipeline file. Raises `SettingError` with a line per mistake."""
    kind = spec.model_fields["type"].annotation.__args__[0]  # type: ignore[union-attr]
    return check_document(spec, {"type": kind, **settings}, what="setting", name=name)


def _options(
    inference: Inference,
    *,
    key: TextOf | None = None,
    id: TextOf | None = None,
    shards: int,
    parallelism: int | None,
    name: str,
) -> InferenceOptions:
    _check(inference, name)
    return InferenceOptions(
        inference.spec(inference.served_model()),
        key=text_of(key, "key"),
        id=text_of(id, "id"),
        capacity=inference.capacity,
        shards=shards,
        parallelism=parallelism,
        name=name,
    )


def _check(inference: Inference, function: str) -> None:
    check_inference(inference)
    refuse_prompt(inference, f"{function}: the application writes its own messages and schemas")
