"""What a package of your own adds to Forebay: connectors, applications and routing policies.

    from forebay import extend

A package names them in its `pyproject.toml` as entry points of the groups `forebay.connectors`,
`forebay.applications` and `forebay.policies`; see `docs/how-to/extend.md`. Settings are pydantic models: what
their keys take, and what the keys mean, is said with `pydantic.Field`, and mistakes in a pipeline file are
told with their line, as everywhere. They are read, checked and shown without Flink: import PyFlink, and all
else that takes long, in the method that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from forebay.apps.base import ApplicationSettings, Preset
from forebay.apps.base import PipelineView as ApplicationView
from forebay.connectors.base import (
    DEAD_LETTERS,
    Connector,
    ConnectorSettings,
    PipelineView,
    Problem,
    SinkSettings,
    SourceSettings,
    Written,
)
from forebay.documents.fields import FieldPath, LocalPath
from forebay.documents.fields import SecretField as Secret
from forebay.errors import ForebayError, SettingError
from forebay.fleet.routing_request import RoutingRequest, Vector
from forebay.records import DeadLetter, Event, Result
from forebay.stateful.program import Program

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, StreamExecutionEnvironment

    from forebay.apps.graph import InferenceOptions
    from forebay.flink.infer import InferenceStreams

__all__ = [
    "Application",
    "Connector",
    "FieldPath",
    "FleetState",
    "LocalPath",
    "Preset",
    "RoutingPolicy",
    "RoutingRequest",
    "Secret",
    "SinkConnector",
    "SourceConnector",
    "Vector",
]


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What somebody else's code raises becomes a `SettingError` that begins with `what`; Forebay's own errors
    stay as they are."""
    try:
        yield
    except ForebayError:
        raise
    except Exception as error:
        raise SettingError(f"{what}: {type(error).__name__}: {error}; mend its package") from error


class _Checked(ConnectorSettings):
    """What the connectors of other packages share."""

    def ready(self) -> None:
        """Raise `forebay.errors.SettingError` where what it needs is not there, such as a file; called
        before anything starts."""

    def summary(self) -> str:
        """What it is, in a line for `forebay run --dry-run`, without secrets."""
        return self.type

    def check(self, key: str) -> None:
        try:
            with _told(f"the connector {self.type!r} failed in ready()"):
                self.ready()
        except SettingError as error:
            raise SettingError(f"{key}: {error}") from None


class SourceConnector(_Checked, SourceSettings):
    """Where events come from, as the keys of `source` in a pipeline file.

    Inherit from it, and give keys as fields. What a restore goes on with is what the stream's own operators
    keep in Flink's state: give each of those a `uid`. All keys are in the pipeline's fingerprint: a
    checkpoint is not resumed with other values, unless `bound` names the keys that it is bound to.

    >>> class Lines(extend.SourceConnector):
    ...     path: extend.LocalPath
    ...     def read(self, env):
    ...         return fb.read_text(env, self.path)
    >>> extend.Connector(source=Lines).source is Lines
    True
    """

    uid: ClassVar[str] = "source events"

    def read(self, env: StreamExecutionEnvironment) -> DataStream:
        """The events as a stream that `fb.infer` takes: of `fb.Event` objects, of dicts or of texts, or of
        anything that `event` makes an event of."""
        raise NotImplementedError

    def event(self, element: Any) -> Event | DeadLetter | Mapping[str, Any] | str:
        """The event of an element of the stream, or a dead letter where it is none. An element for which this
        raises becomes a dead letter, too."""
        found: Event | DeadLetter | Mapping[str, Any] | str = element
        return found

    def stream(self, env: StreamExecutionEnvironment, pipeline: PipelineView) -> DataStream:
        from forebay.api.objects import encoded_events

        with _told(f"the connector {self.type!r} failed in read()"):
            given = type(self).event is not SourceConnector.event
            return encoded_events(self.read(env), self.event if given else None, f"source {self.type}")


class SinkConnector(_Checked, SinkSettings):
    """Where results go, as the keys of `sink` in a pipeline file, and with `takes_dead_letters` of
    `dead_letters`.

    Inherit from it, and give keys as fields. How often a result is written is up to what `write` puts into
    the job: exactly once with a sink of Flink's that commits with checkpoints, such as its `FileSink`. Give
    it a `uid`. What `directory` names is made before the start.

    >>> class Shout(extend.SinkConnector):
    ...     def write(self, stream):
    ...         stream.map(lambda result: str(result.answer).upper()).print()
    >>> extend.Connector(sink=Shout).source is None
    True
    """

    takes_dead_letters: ClassVar[bool] = False

    def write(self, stream: DataStream) -> None:
        """Put what writes `stream` into its job: `fb.Result` objects, or `fb.DeadLetter` objects."""
        raise NotImplementedError

    def attach(self, records: DataStream, written: Written) -> None:
        from forebay.api.objects import ObjectStream

        stream = ObjectStream(records, DeadLetter if written.what == DEAD_LETTERS else Result)
        with _told(f"the connector {self.type!r} failed in write()"):
            self.write(stream)


class Application(ApplicationSettings):
    """A stateful program in place of one question per event, as the keys of `application` in a pipeline file,
    and as `forebay run NAME`.

    Inherit from it, give keys as fields, and make a program of them. The pipeline needs a `key`. A checkpoint
    is not resumed with other values of the keys, unless `bound` names those that it is bound to. `preset` is
    what `forebay run NAME` has set in the pipeline beside the source and the sink.

    >>> class Count(fb.Program[int]):
    ...     def initial(self, key):
    ...         return 0
    ...     def on_event(self, state, event, now):
    ...         return fb.Step(state + 1, outputs=(fb.Output(state + 1),))
    >>> class Counter(extend.Application):
    ...     def program(self, *, event_time):
    ...         return Count()
    >>> Counter(type="counter").needs_key
    True
    """

    needs_key: ClassVar[bool] = True
    max_state_bytes: ClassVar[int] = 262_144
    """What a key may keep; a step that would keep more is undone, and its event becomes a dead letter."""

    def program(self, *, event_time: bool) -> Program[Any]:
        """The program; it is pickled into the job. `event_time`: whether the pipeline has event time. Called
        before anything starts: what it raises is told then."""
        raise NotImplementedError

    def problems(self, pipeline: ApplicationView) -> Iterator[Problem]:
        yield from super().problems(pipeline)
        try:
            with _told(f"the application {self.type!r} failed in program()"):
                self.program(event_time=pipeline.event_time is not None)
        except SettingError as error:
            yield "application", str(error)

    def build(self, records: DataStream, options: InferenceOptions) -> InferenceStreams:
        from forebay.apps.graph import stateful

        return stateful(self, records, options)


class FleetState(Protocol):
    """What a routing policy sees of the replicas, and does not change. Vectors have a number per replica."""

    @property
    def count(self) -> int:
        """How many numbers there are; some may be of replicas that have left."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """The URL of each."""
        ...

    @property
    def available(self) -> NDArray[np.bool_]:
        """Whether each may be chosen."""
        ...

    @property
    def requests(self) -> Vector:
        """Own requests that are there now."""
        ...

    @property
    def waiting(self) -> Vector:
        """Those of them without a first token."""
        ...

    @property
    def external(self) -> Vector:
        """Requests of others, as far as the replica reports them."""
        ...

    @property
    def kv_tokens(self) -> Vector:
        """Tokens that its KV cache holds; infinite where it does not say."""
        ...

    def numbers(self) -> Sequence[int]:
        """The replicas that are available, of which there is at least one."""
        ...


class RoutingPolicy(Protocol):
    """Which replica takes a request: the name of one stands under `routing`.

    The entry point names a class, or a function, that is called with a seed and gives the policy. A policy
    may keep state of its own; the same calls in the same order give the same choices.

    >>> class First:
    ...     def __init__(self, seed: int) -> None:
    ...         pass
    ...     def choose(self, demand, cached, fleet, now_s):
    ...         return fleet.numbers()[0]
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: FleetState, now_s: float) -> int:
        """The number of a replica that is available. `cached`: for each replica, how many of the prompt's
        tokens its prefix cache should hold. Called on the event loop for every request: it does not block."""
        ...
