"""The Flink graph of `topics`: shard, embed and place in batches, label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyflink.datastream import DataStream, OutputTag, ProcessFunction, RuntimeContext

from forebay.apps.graph import InferenceOptions, with_answers
from forebay.apps.topics.embedding import NoEmbedding, OpenEmbedder, OpenMiniLM, find_embedding_model
from forebay.apps.topics.finder import ASSIGNED, TopicStage, assignments_of, shard_event_of, text_bytes
from forebay.apps.topics.settings import (
    PROMPT,
    SCHEMA,
    TopicsSpec,
    assigned,
    labelled,
    to_prompt_event,
    to_result,
)
from forebay.apps.topics.values import TopicSettings
from forebay.clock import SystemClock
from forebay.codec import decode, encode
from forebay.engine.prompt.template import MAX_FIELD_CHARS
from forebay.errors import RecordError, SetupError
from forebay.flink.event_time import REFUSED, Clocked, partition_of
from forebay.flink.infer import InferenceStreams
from forebay.flink.keying import EventText, TextField, id_of, key_of, refused
from forebay.flink.metrics import IntakeCounter
from forebay.flink.shards import flink_keys, shard_of
from forebay.flink.stages import StageFunction, message, message_key, payload, staged
from forebay.flink.thread_mode import check_environment
from forebay.flink.types import BYTES, side_output
from forebay.records import DeadLetter, Event
from forebay.settings import load_settings

MAX_LOG_BYTES = 1 << 18
"""Some thousand texts; after a restore they are embedded again, at 3 ms each."""
ASSIGNMENTS = OutputTag("assignments", BYTES)


class Texts(ProcessFunction):
    """Converts encoded records to messages, by the hash of `key` over `shards`.

    Sends dead letters, and events without text, key or id, to `REFUSED`.
    """

    def __init__(self, text: TextField, *, key: EventText | None, id: EventText | None, shards: int) -> None:
        self._text = text
        self._key = key
        self._id = id
        self._shards = shards

    def open(self, runtime_context: RuntimeContext) -> None:
        self._keys = flink_keys(self._shards)
        self._intake = IntakeCounter(runtime_context, SystemClock())

    def close(self) -> None:
        self._intake.flush()

    def process_element(self, value: bytes, ctx: ProcessFunction.Context) -> Iterator[Any]:
        self._intake.read()
        data = bytes(value)
        record = decode(data)
        if isinstance(record, DeadLetter):
            self._intake.refuse(record.cause)
            yield REFUSED, data
            return
        try:
            key = key_of(self._key, record)
            text = self._text(record)
            id = id_of(self._id, record, key)
            if self._id is not None:
                _check_id(id)
        except Exception as error:  # of a function of the user's
            letter = refused(record, error)
            self._intake.refuse(letter.cause)
            yield REFUSED, encode(letter)
            return
        shard = shard_of(key, self._shards)
        partition = partition_of(record.position)
        yield message(self._keys[shard], text_bytes(record.time_ms, text, partition, id))


def _check_id(id: str) -> None:
    if len(id) > MAX_FIELD_CHARS:
        raise RecordError(f"the id is longer than {MAX_FIELD_CHARS} characters for this record")
    try:
        id.encode()
    except UnicodeEncodeError:
        raise RecordError("the id holds half a character (a lone surrogate) and is not valid text") from None


class Assignments(ProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._key = flink_keys(2)[ASSIGNED]

    def process_element(self, value: bytes, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if message_key(value) != self._key:
            yield bytes(value)
            return
        for each in assignments_of(payload(value)):
            yield ASSIGNMENTS, encode(assigned(each))


@dataclass(frozen=True, slots=True)
class OpenStage:
    embedder: OpenEmbedder

    def __call__(self, settings: TopicSettings, shard: int) -> TopicStage:
        embedder = self.embedder()
        return TopicStage(settings, shard, embedder.embed, embedder.width)


def topic_events(
    stream: DataStream,
    settings: TopicSettings,
    text: TextField,
    embedder: OpenEmbedder,
    *,
    key: EventText | None = None,
    id: EventText | None = None,
    wait_ms: int,
    shards: int = 1,
    parallelism: int = 1,
    name: str,
) -> tuple[Clocked, DataStream]:
    """Detect topics in a stream of encoded records.

    Messages carry `ShardEvent`s behind the key; refused records and results of single texts are separate
    outputs. A text waits at most `wait_ms` for its batch. Each topic lives in one shard, so with several
    shards, texts that belong together need the same `key`. Raises `SettingError` if Python would run in
    worker processes.
    """
    check_environment(stream.get_execution_environment())
    source = stream._j_data_stream.getParallelism()
    texts = stream.process(Texts(text, key=key, id=id, shards=shards), BYTES).name(f"{name}-texts")
    texts.set_parallelism(source)
    function = StageFunction(
        OpenStage(embedder),
        settings,
        shards=shards,
        next_shards=2,
        wait_ms=wait_ms,
        most_log_bytes=MAX_LOG_BYTES,
        open_now=TopicStage.open_now,
    )
    found = staged(texts, function, parallelism=min(parallelism, shards), name=f"{name}-topics")
    events = found.process(Assignments(), BYTES).name(f"{name}-assignments")
    events.set_parallelism(min(parallelism, shards))
    return Clocked(events, side_output(texts, REFUSED)), side_output(events, ASSIGNMENTS)


def topics(
    settings: TopicsSpec, stream: DataStream, parts: InferenceOptions, embedder: OpenEmbedder | None = None
) -> InferenceStreams:
    """Run `topics` on encoded records in the order of a source.

    Results are topic events, each exactly once, and the model's labels; assignments have each text's topic;
    dead letters are refused records and failed questions. Raises `SetupError` if the embedding model is not
    installed.
    """
    found, assignments = topic_events(
        stream,
        settings.find,
        TextField(settings.text),
        embedder or embedder_of(settings),
        key=parts.key if settings.topic_shards > 1 else None,
        id=parts.id,
        wait_ms=round(settings.wait_s * 1000),
        shards=settings.topic_shards,
        parallelism=parts.parallelism or 1,
        name=parts.name,
    )
    answered = with_answers(
        found,
        parts,
        read=shard_event_of,
        to_result=to_result,
        question=to_prompt_event,
        key=_topic,
        answered=labelled,
        prompt=PROMPT,
        schema=SCHEMA,
        asks=settings.labels,
    )
    return replace(answered, assignments=assignments)


def embedder_of(settings: TopicsSpec) -> OpenEmbedder:
    """Raises `SetupError` if the embedding model is not installed."""
    if settings.embeddings == "words":
        return NoEmbedding
    model = find_embedding_model(load_settings())
    if model is None:
        raise SetupError(
            "topics: the embedding model is not installed; run `forebay setup --embeddings`, or set "
            "application.embeddings to words"
        )
    return OpenMiniLM(model, settings.threads)


def _topic(event: Event) -> str:
    return str(event.fields["topic"])
