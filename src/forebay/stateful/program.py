"""What a user writes: a program that sees a key's state before each call and the answer after it.

A program is pure: what it returns follows from its arguments alone. It is pickled into the job, so it holds
settings and nothing that changes. One key's steps come one after another; while a call of the key is awaited,
what comes for the key waits in a queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from forebay.errors import ForebayError
from forebay.records import JSON, Event, Message, Sampling, Usage

S = TypeVar("S")
Clock = Literal["event", "wall"]
"""Which time a timer waits for: the watermark's, or the wall clock's."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where and when a step is made.

    `id` names what the step is about: the event's id, or that of the timer's firing, which no other turn of
    the key has; the calls and outputs of a turn are named after it. `wall_ms` is the present. `watermark_ms`
    is how far event time had come when the event or timer came in, None where nothing is promised yet: an
    event before it is late.

    >>> fb.Moment(key="ann", id="T-1", wall_ms=1_772_438_488_000).watermark_ms is None
    True
    """

    key: str
    id: str
    wall_ms: int
    watermark_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One call. `tag` comes back with its answer. `sampling` None: the operator's own.

    >>> fb.Ask((fb.Message("user", "Sum it up."),), tag="summary").tag
    'summary'
    """

    messages: tuple[Message, ...]
    tag: str = ""
    schema: Mapping[str, JSON] | None = None
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave: the parsed value where it had a schema, else the text.

    >>> fb.Answer({"team": "billing"}).value["team"]
    'billing'
    """

    value: JSON
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call, or an event, was given up: the stable word of a dead letter, and a message.

    >>> fb.Failure("late", "the event's window has closed").cause
    'late'
    """

    cause: str
    detail: str
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """One result. `fields` None: those of the event that the turn is about. `time_ms` None: its time.

    >>> fb.Output({"orders": 3}).fields is None
    True
    """

    answer: JSON
    fields: Mapping[str, JSON] | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Timer:
    """When to be woken: in milliseconds since the Unix epoch, by event time or by the wall clock.

    >>> fb.Timer(1_772_438_488_000, "wall").clock
    'wall'
    """

    time_ms: int
    clock: Clock = "event"


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """What a program wants done, all of it at once or, after a kill, none of it.

    `state` None forgets the key, with its timers. `ask`: a call, whose answer is the key's next step.
    `timers` are set by name, over one of the same name; None takes one away. `letter` sends the event that
    the turn is about to the dead letters.

    >>> step = fb.Step(3, outputs=(fb.Output({"count": 3}),), timers={"idle": fb.Timer(60_000)})
    >>> step.ask is None
    True
    """

    state: S | None
    ask: Ask | None = None
    outputs: tuple[Output, ...] = ()
    timers: Mapping[str, Timer | None] = field(default_factory=dict)
    letter: Failure | None = None


class Program(Protocol[S]):
    """The user's part. Inherit from it for the parts that are given here.

    A step that raises, or whose state exceeds the size limit, is undone as a whole: the state stays as it
    was, and the event goes to the dead letters. Where it was the step of an answer, `on_failure` is told
    instead, and decides.

    >>> class Count(fb.Program[int]):
    ...     def initial(self, key):
    ...         return 0
    ...     def on_event(self, state, event, now):
    ...         return fb.Step(state + 1, outputs=(fb.Output({"count": state + 1}),))
    >>> from forebay.testing import Machine
    >>> machine = Machine(Count())
    >>> machine.event("ann", 1, text="tea")
    >>> machine.results[-1].answer
    {'count': 1}
    """

    version: int = 1
    """Of the saved state; `load` is told with which version a state was saved."""

    def initial(self, key: str) -> S:
        """The state of a key that has none."""
        ...

    def on_event(self, state: S, event: Event, now: Moment) -> Step[S]:
        """An event of the key."""
        ...

    def on_answer(self, state: S, tag: str, answer: Answer, now: Moment) -> Step[S]:
        """The answer to the call with `tag`."""
        return Step(state, outputs=(Output(answer.value),))

    def on_failure(self, state: S, tag: str, failure: Failure, now: Moment) -> Step[S]:
        """The call with `tag` was given up after all retries, or the step of its answer was undone."""
        return Step(state, letter=failure)

    def on_timer(self, state: S, name: str, time_ms: int, now: Moment) -> Step[S]:
        """The timer `name`, set for `time_ms`, is due."""
        return Step(state)

    def save(self, state: S) -> JSON:
        """`state` as a JSON value (bytes may be in it); must not be None."""
        return state

    def load(self, version: int, saved: JSON) -> S:
        """The state that `save` of program version `version` gave: migrate it here. Whatever is raised
        fails the job with its message, for to go on would lose what the key remembers."""
        if version != self.version:
            raise StateVersion(
                f"the checkpoint holds state of version {version}, the program is at {self.version}: "
                f"migrate it in load(), or start over"
            )
        loaded: Any = saved
        return loaded  # type: ignore[no-any-return]


class StateVersion(ForebayError):
    """A checkpoint's state has a version that the program cannot read."""
