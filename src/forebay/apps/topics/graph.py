"""The application `topics` as a Flink graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.apps.graph import InferenceOptions, with_answers
from forebay.apps.topics.operators import topic_events
from forebay.apps.topics.settings import PROMPT, SCHEMA, Topics, labelled, to_prompt_event, to_result
from forebay.apps.topics.stages import shard_event_of
from forebay.embed.base import NoEmbedding, OpenEmbedder, OpenMiniLM
from forebay.embed.model import find_embedding_model
from forebay.errors import SetupError
from forebay.flink.infer import InferenceStreams
from forebay.flink.keying import TextField
from forebay.records import Event
from forebay.settings import load_settings

if TYPE_CHECKING:
    from pyflink.datastream import DataStream


def topics(
    settings: Topics, stream: DataStream, parts: InferenceOptions, embedder: OpenEmbedder | None = None
) -> InferenceStreams:
    """The topics of `stream`, which holds encoded records in the order of a source.

    Results are what happened to topics, each exactly once, and the labels that the model gives; refused
    records and questions that were given up are dead letters. `embedder`: another than the settings name.
    Raises `SetupError` where the embedding model is not installed.
    """
    found = topic_events(
        stream,
        settings.find,
        TextField(settings.text),
        embedder or embedder_of(settings),
        key=parts.key if settings.topic_shards > 1 else None,
        wait_ms=round(settings.wait_s * 1000),
        shards=settings.topic_shards,
        parallelism=parts.parallelism or 1,
        name=parts.name,
    )
    return with_answers(
        found,
        parts,
        read=shard_event_of,
        told=to_result,
        question=to_prompt_event,
        key=_topic,
        answered=labelled,
        prompt=PROMPT,
        schema=SCHEMA,
        asks=settings.labels,
    )


def embedder_of(settings: Topics) -> OpenEmbedder:
    """What the settings name. Raises `SetupError` where the embedding model is not installed."""
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
