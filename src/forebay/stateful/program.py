"""What a user writes: a program that sees a key's state before each call and the answer after it.

The steps of a key run one after another; while a call of the key is awaited, its events wait in a queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from forebay.errors import ForebayError
from forebay.records import JSON, Event, Message, Sampling, Usage

S = TypeVar("S")
TimeDomain = Literal["event", "wall"]


@dataclass(frozen=True, slots=True)
class Moment:
    """The key, the id and the time of a step.

    Attributes:
        key: The key that the step is about.
        id: The event's id, or that of the timer's firing. No two turns of a key share one. The calls and
            outputs of a turn are named after it.
        wall_ms: The wall clock, in milliseconds since the Unix epoch.
        watermark_ms: The watermark when the event or timer came in: an event with an earlier time is late.
            None before the first watermark.

    >>> fb.Moment(key="ann", id="T-1", wall_ms=1_772_438_488_000).watermark_ms is None
    True
    """

    key: str
    id: str
    wall_ms: int
    watermark_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One call to the model.

    Attributes:
        messages: The chat, sent as it is.
        tag: Comes back with the answer, to tell calls apart.
        schema: JSON schema of the answer; None: free text.
        sampling: None: that of the `Inference`.

    >>> fb.Ask((fb.Message("user", "Sum it up."),), tag="summary").tag
    'summary'
    """

    messages: tuple[Message, ...]
    tag: str = ""
    schema: Mapping[str, JSON] | None = None
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call.

    Attributes:
        value: The parsed JSON value if the call had a schema, else the text.
        usage: Token counts, see `Usage`.
        finish_reason: Why the engine stopped, in its own word: `stop`, `length`.

    >>> fb.Answer({"team": "billing"}).value["team"]
    'billing'
    """

    value: JSON
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call or an event was given up.

    Attributes:
        cause: The cause of a dead letter: that of an error in `forebay.errors`, or a word of your own.
        detail: What happened, for a person to read.
        attempts: How many calls were made.

    >>> fb.Failure("late", "the event's window has closed").cause
    'late'
    """

    cause: str
    detail: str
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """One result of a program.

    Attributes:
        answer: Any JSON value; it becomes the `answer` of a `Result`.
        fields: The result's fields; None: those of the turn's event.
        time_ms: The result's time; None: that of the turn's event or timer.

    >>> fb.Output({"orders": 3}).fields is None
    True
    """

    answer: JSON
    fields: Mapping[str, JSON] | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Timer:
    """When to call `on_timer`.

    Attributes:
        time_ms: Milliseconds since the Unix epoch.
        clock: `event`: when the watermark reaches that time; `wall`: by the wall clock.

    >>> fb.Timer(1_772_438_488_000, "wall").clock
    'wall'
    """

    time_ms: int
    clock: TimeDomain = "event"


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """What a program requests. After a kill, all of it was done or none of it.

    Attributes:
        state: What the key remembers from now on. None forgets the key and its timers.
        ask: A call. Its answer is the key's next step; events of the key wait for it.
        outputs: Results, in this order.
        timers: Timers by name. One of the same name is replaced; None cancels it.
        letter: Send the turn's event to the dead letters, for this reason.

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
    """Base class for your own stateful inference. Run one with `infer_stateful`, test one with `Machine`.

    A program is pure: what its methods return depends on their arguments alone. It is pickled into the job,
    so it may hold settings, and nothing that changes. Only `initial` and `on_event` must be written.

    A step that raises, or whose state is too large, is undone as a whole: the state stays as it was and the
    event becomes a dead letter. If it was the step of an answer, `on_failure` is called and decides.

    Attributes:
        version: Version of the saved state, 1 by default. Raise it when the state's form changes, and migrate
            older state in `load`.

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
    """Version of the saved state; passed to `load`."""

    def initial(self, key: str) -> S:
        """The state of a key that has none yet."""
        ...

    def on_event(self, state: S, event: Event, now: Moment) -> Step[S]:
        """Called for each event of the key, in order, after the calls of earlier events."""
        ...

    def on_answer(self, state: S, tag: str, answer: Answer, now: Moment) -> Step[S]:
        """Called with the answer to the call with `tag`. By default the answer becomes an output."""
        return Step(state, outputs=(Output(answer.value),))

    def on_failure(self, state: S, tag: str, failure: Failure, now: Moment) -> Step[S]:
        """Called if the call with `tag` was given up after all retries, or if the step of its answer was
        undone. By default the event becomes a dead letter."""
        return Step(state, letter=failure)

    def on_timer(self, state: S, name: str, time_ms: int, now: Moment) -> Step[S]:
        """Called when the timer `name` fires; it was set for `time_ms`. By default nothing happens."""
        return Step(state)

    def save(self, state: S) -> JSON:
        """`state` as a JSON value, in which bytes are allowed; never None. By default the state itself."""
        return state

    def load(self, version: int, saved: JSON) -> S:
        """The state saved by `save` of program version `version`; migrate it here. By default another version
        is refused. An exception fails the job with its message: continuing would lose the key's state."""
        if version != self.version:
            raise StateVersion(
                f"the checkpoint holds state of version {version}, the program is at {self.version}: "
                f"migrate it in load(), or start over"
            )
        loaded: Any = saved
        return loaded  # type: ignore[no-any-return]


class StateVersion(ForebayError):
    """A checkpoint's state has a version that the program cannot read."""
