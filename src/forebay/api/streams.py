"""`infer` and `infer_stateful` over streams of objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyflink.datastream import DataStream

from forebay.api.events import TextOf, ToEvent, key_templates, source_of, text_of
from forebay.api.inference import Inference
from forebay.api.models import AnswerModel, ReadResult
from forebay.api.objects import ObjectStream
from forebay.codec import decode
from forebay.errors import SettingError
from forebay.flink import infer as flink_infer
from forebay.flink.infer import DEFAULT_SHARDS
from forebay.flink.request_pool import Ordering
from forebay.records import DeadLetter, Result
from forebay.stateful.program import Program


@dataclass(frozen=True)
class Outputs:
    """What an operator gives: results, and dead letters for the records that were given up.

    Both are PyFlink streams; what is not read costs nothing.
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
    """Ask the model about every element of `stream`: each gives exactly one result or one dead letter, as
    far as Flink's state goes. A record cannot end the job.

    Elements are dicts (the fields that a template sees), texts (the field `text`), rows with names, or
    `Event`s, as Forebay's sources give them; of anything else, `to_event` makes one of these. `key` and `id`
    are templates such as `"{{ user }}"`, or functions of the event. The id names a record: it is the same
    each time the record is read, and no other has it. Without `id`, it is the place in a source of Forebay's,
    else a hash of the element, which equal elements share: each still gives a result.

    At most `inference.capacity` requests are in flight per subtask; past that the input is blocked. Answers
    leave as they come, or with `ordering="key"` in the input's order within each key. With `event_time`,
    results carry their event's time, and no watermark passes an event whose answer is awaited.

    `shards`, the number of Flink keys that state is spread over, is at least the parallelism, and stays.
    The operator's `uid` is `name`: unique in the job, and the same for state to be found again.

    Raises `SettingError` for what is wrong, before anything starts.

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

    Steps of one `key` are made one after another, in the order of its events; keys go side by side. Each
    change of state, its outputs and its next call are one change, exactly once as far as Flink's state goes.
    A call in flight is in state; after a restore it is made again with the same id and the same messages.

    At most `queue` events of a key wait for its call; past that the input is blocked. A key is forgotten
    `ttl_s` after its last step (None: never); its saved state and its timers may take `max_state_bytes`.
    The program writes its own messages and schemas: `inference` has no prompt and no schema here.

    The rest is as for `infer`; `shards` may not change for the life of the state.

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
    """Raise `SettingError` unless `inference` is an `Inference`."""
    if not isinstance(inference, Inference):
        raise SettingError(
            f"inference: expected an Inference, found a value of type {type(inference).__name__}"
        )


def refuse_prompt(inference: Inference, why: str) -> None:
    """Raise `SettingError` where `inference` asks for what the operator would not use."""
    for name in ("prompt", "messages", "schema"):
        if getattr(inference, name):
            raise SettingError(f"{why}; leave {name} out of the Inference")


def outputs(given: flink_infer.InferenceStreams, answers: AnswerModel | None) -> Outputs:
    """The two streams as streams of objects."""
    read = decode if answers is None else ReadResult(answers)
    return Outputs(ObjectStream(given.results, Result, read), ObjectStream(given.dead_letters, DeadLetter))
