"""`infer` and `infer_stateful` over streams of objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyflink.datastream import DataStream

from forebay.api.inference import Inference
from forebay.api.models import AnswerModel, ReadResult
from forebay.api.objects import ObjectStream, TextOf, ToEvent, key_templates, source_of, text_of
from forebay.codec import decode
from forebay.errors import SettingError
from forebay.flink import infer as flink_infer
from forebay.flink.infer import DEFAULT_SHARDS
from forebay.flink.request_pool import Ordering
from forebay.records import DeadLetter, Result
from forebay.stateful.program import Program


@dataclass(frozen=True)
class Outputs:
    """The two output streams of an operator.

    Attributes:
        results: One result per answered event.
        dead_letters: The records that failed for good.

    Both are PyFlink streams. A stream that nothing reads costs nothing, and its records are dropped.

    >>> def teams(tickets: fb.ObjectStream[fb.Event]) -> fb.Outputs:
    ...     ask = fb.Inference("http://127.0.0.1:8100", prompt="Which team should take this? {{ text }}")
    ...     return fb.infer(tickets, ask, key="{{ channel }}", name="teams")
    """

    results: ObjectStream[Result]
    dead_letters: ObjectStream[DeadLetter]


def infer(
    stream: DataStream,
    inference: Inference,
    *,
    to_event: ToEvent | None = None,
    key: TextOf | None = None,
    id: TextOf | None = None,
    ordering: Ordering = "unordered",
    shards: int = DEFAULT_SHARDS,
    event_time: bool = False,
    parallelism: int | None = None,
    name: str = "infer",
) -> Outputs:
    """Call the model for every element of `stream`: exactly one result or dead letter each, within Flink's
    state. No record can end the job.

    Elements are dicts, texts (which become the field `text`), pydantic models, rows with names, or `Event`s
    from one of Forebay's sources. `to_event` converts anything else.

    Results are emitted as soon as they arrive, or with `ordering="key"` in input order within each key. At
    most `inference.capacity` requests are in flight per subtask; beyond that the operator blocks its input,
    which is Flink's backpressure.

    Args:
        stream: A PyFlink stream.
        inference: The engine, the prompt, and the schema of answers.
        to_event: Converts an element to a dict, a text, a pydantic model or an `Event`. If it raises, the
            record becomes a dead letter.
        key: A template such as `"{{ user }}"`, or a function of the event. Keys spread events over shards;
            with `ordering="key"` they keep the order. An event has no key if it is None or empty, or if a
            field of the template is missing or null.
        id: A template or a function that names a record: the same each time the record is read, and unique.
            Default: the record's position in a source of Forebay's, else a hash of the element; equal
            elements then share an id, and each still gets a result.
        ordering: `"unordered"` or `"key"`.
        shards: Number of Flink keys that state is spread over: at least the parallelism. With
            `ordering="key"` it must not change for the life of the job.
        event_time: Results carry their event's time, and no watermark passes an event before its result.
        parallelism: Number of subtasks; None: the environment's.
        name: Name and `uid` of the operator: unique in the job and never changed, so that a restart finds the
            state.

    Nothing runs before `env.execute()`. Checking the model with the server blocks for up to 3 seconds, or up
    to `deadline_s` for an `Inference` without `model`; from 3 seconds on the wait is logged. Raises
    `SettingError` for a wrong argument and a model that is not served, and `PipelineFailed` if `model` was
    left out and no server answered.

    >>> env = fb.environment()
    >>> ask = fb.Inference("http://127.0.0.1:8100", prompt="In one word, what is this about? {{ text }}")
    >>> answered = fb.infer(env.from_collection(["My router blinks red."]), ask)
    >>> with answered.results.execute_and_collect() as results:
    ...     [type(result.answer) for result in results]
    [<class 'str'>]
    """
    check_inference(inference)
    if inference.prompt is None and not inference.messages:
        raise SettingError("infer: the Inference has no prompt: give it prompt= or messages=")
    templates = [*inference.templates(), *key_templates(key, id)]
    encoded, read = source_of(stream, to_event, "infer", templates=templates)
    given = flink_infer.infer(
        encoded,
        inference.spec(inference.served_model()),
        to_event=read,
        key=text_of(key, "key"),
        id=text_of(id, "id"),
        capacity=inference.capacity,
        ordering=ordering,
        shards=shards,
        event_time=event_time,
        parallelism=parallelism,
        name=name,
    )
    return outputs(given, inference.answer_model())


def infer_stateful(
    stream: DataStream,
    program: Program[Any],
    inference: Inference,
    *,
    key: TextOf,
    to_event: ToEvent | None = None,
    id: TextOf | None = None,
    queue: int = 64,
    ttl_s: float | None = None,
    max_state_bytes: int = 262_144,
    shards: int = DEFAULT_SHARDS,
    event_time: bool = False,
    parallelism: int | None = None,
    name: str = "infer",
) -> Outputs:
    """Run `program` over `stream`: it sees its key's state before each call and the answer after it.

    The steps of one key run one after another, in the order of its events; keys run concurrently. A step's
    state change, outputs and next call are atomic, exactly once within Flink's state. A call in flight is in
    state: after a restore it is sent again with the same id and messages.

    Args:
        stream, to_event, id, parallelism, name: As for `infer`.
        program: Your program. It writes its own messages and schemas.
        inference: The engine, without a prompt and a schema.
        key: A template such as `"{{ user }}"`, or a function of the event: the key of the state. An event
            without a key becomes a dead letter, `no_key`.
        queue: How many events of a key may wait for its call; beyond that the input is blocked.
        ttl_s: A key's state is deleted this long after its last step, by the wall clock; None: never.
        max_state_bytes: Maximum size of a key's saved state and timers. A step beyond it is undone, and its
            event becomes a dead letter.
        shards: As for `infer`; must not change for the life of the state.
        event_time: Results carry the time of their event or timer, and no watermark passes one before its
            result.

    Raises the errors of `infer`.

    >>> class Count(fb.Program[int]):
    ...     def initial(self, key):
    ...         return 0
    ...     def on_event(self, state, event, now):
    ...         question = f"Message {state + 1} of {now.key}: {event.fields['text']}"
    ...         return fb.Step(state + 1, fb.Ask((fb.Message("user", question),)))
    ...     def on_answer(self, state, tag, answer, now):
    ...         return fb.Step(state, outputs=(fb.Output({"count": state}),))
    >>> env = fb.environment()
    >>> said = env.from_collection([{"user": "ann", "text": "tea"}, {"user": "ann", "text": "cups"}])
    >>> counted = fb.infer_stateful(said, Count(), fb.Inference("http://127.0.0.1:8100"), key="{{ user }}")
    >>> with counted.results.execute_and_collect() as results:
    ...     [result.answer for result in results]
    [{'count': 1}, {'count': 2}]
    """
    check_inference(inference)
    refuse_prompt(inference, "infer_stateful: the program writes its own messages and schemas")
    if Program not in type(program).__mro__:
        raise SettingError(f"program: expected a Program, found a value of type {type(program).__name__}")
    encoded, read = source_of(stream, to_event, "infer_stateful", templates=key_templates(key, id))
    given = flink_infer.infer_stateful(
        encoded,
        program,
        inference.spec(inference.served_model()),
        key=text_of(key, "key"),
        to_event=read,
        id=text_of(id, "id"),
        capacity=inference.capacity,
        queue=queue,
        ttl_s=ttl_s,
        max_state_bytes=max_state_bytes,
        shards=shards,
        event_time=event_time,
        parallelism=parallelism,
        name=name,
    )
    return outputs(given, None)


def check_inference(inference: object) -> None:
    if not isinstance(inference, Inference):
        raise SettingError(
            f"inference: expected an Inference, found a value of type {type(inference).__name__}"
        )


def refuse_prompt(inference: Inference, why: str) -> None:
    for name in ("prompt", "messages", "schema"):
        if getattr(inference, name):
            raise SettingError(f"{why}; leave {name} out of the Inference")


def outputs(given: flink_infer.InferenceStreams, answers: AnswerModel | None) -> Outputs:
    read = decode if answers is None else ReadResult(answers)
    return Outputs(ObjectStream(given.results, Result, read), ObjectStream(given.dead_letters, DeadLetter))
