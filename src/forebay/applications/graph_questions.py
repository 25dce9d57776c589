"""What an application found, and what the model says of it, as one stream of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from forebay.applications.parts import Parts
from forebay.codec import decode, encode
from forebay.engine.prompt import PromptTemplate
from forebay.flink_types import BYTES
from forebay.operators.infer import Inferred, infer
from forebay.operators.keying import EventText
from forebay.operators.stages import payload
from forebay.operators.stream_clock import Clocked
from forebay.records import JSON, Event, Result

Found = TypeVar("Found")


def with_answers(
    found: Clocked,
    parts: Parts,
    *,
    read: Callable[[bytes], Found],
    told: Callable[[Found], Result],
    question: Callable[[Found], Event | None],
    key: EventText,
    answered: Callable[[Result], Result],
    prompt: PromptTemplate,
    schema: Mapping[str, JSON],
    asks: bool,
) -> Inferred:
    """Each message of `found`, its payload `read`, as the result that is `told` of it and, where it `asks`,
    the answers to its questions. Dead letters are records that were refused and questions that were given up.
    """

    def questions(value: bytes) -> Iterator[bytes]:
        asked = question(read(payload(value)))
        if asked is not None:
            yield encode(asked)

    events = found.messages.map(lambda value: encode(told(read(payload(value)))), BYTES)
    events.name("events").set_parallelism(1)
    if not asks:
        return Inferred(events, found.refused)
    asked = found.messages.flat_map(questions, BYTES).name("questions").set_parallelism(1)
    call = replace(parts.call, prompt=prompt, schema=schema)
    inferred = infer(
        asked,
        call,
        key=key,
        capacity=parts.capacity,
        shards=parts.shards,
        parallelism=parts.parallelism,
        name=parts.name,
    )
    answers = inferred.results.map(lambda data: encode(answered(decode(bytes(data)))), BYTES).name("answers")
    return Inferred(events.union(answers), found.refused.union(inferred.dead_letters))
