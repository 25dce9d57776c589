"""Base classes for packages that extend Forebay: connectors, applications and routing policies.

    from forebay import extend

A package declares them as entry points `forebay.connectors`, `forebay.applications` and `forebay.policies`
(see `docs/how-to/extend.md`). Settings are pydantic models, read without Flink: import PyFlink, and all else
that is slow, in the method that needs it.
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
from forebay.errors import ForebayError, SettingError
from forebay.fields import FieldPath, LocalPath
from forebay.fields import SecretField as Secret
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
def _named_errors(what: str) -> Iterator[None]:
    try:
        yield
    except ForebayError:
        raise
    except Exception as error:
        raise SettingError(f"{what}: {type(error).__name__}: {error}; fix its package") from error


class _Checked(ConnectorSettings):
    def ready(self) -> None:
        """Raise `forebay.errors.SettingError` if a requirement, such as a file, is missing.

        Called before anything starts.
        """

    def summary(self) -> str:
        """One line for `forebay run --dry-run`, without secrets."""
        return self.type

    def check(self, key: str) -> None:
        try:
            with _named_errors(f"the connector {self.type!r} failed in ready()"):
                self.ready()
        except SettingError as error:
            raise SettingError(f"{key}: {error}") from None


class SourceConnector(_Checked, SourceSettings):
    """A source of events, as the `source` of a pipeline file.

    Subclass it and declare settings as fields. Give each stream operator a `uid`: a restore finds its state
    by it. A job resumes from a checkpoint only with the same settings; `bound` limits which ones count.

    >>> class Lines(extend.SourceConnector):
    ...     path: extend.LocalPath
    ...     def read(self, env):
    ...         return fb.read_text(env, self.path)
    >>> extend.Connector(source=Lines).source is Lines
    True
    """

    uid: ClassVar[str] = "source events"

    def read(self, env: StreamExecutionEnvironment) -> DataStream:
        """The events as a stream of `fb.Event` objects, dicts, texts, or anything that `event` converts."""
        raise NotImplementedError

    def event(self, element: Any) -> Event | DeadLetter | Mapping[str, Any] | str:
        """Convert an element of the stream to an event or a dead letter.

        If this raises, the element becomes a dead letter.
        """
        found: Event | DeadLetter | Mapping[str, Any] | str = element
        return found

    def stream(self, env: StreamExecutionEnvironment, pipeline: PipelineView) -> DataStream:
        from forebay.api.objects import encoded_events

        with _named_errors(f"the connector {self.type!r} failed in read()"):
            given = type(self).event is not SourceConnector.event
            return encoded_events(self.read(env), self.event if given else None, f"source {self.type}")


class SinkConnector(_Checked, SinkSettings):
    """A sink for the results of a pipeline file; with `takes_dead_letters`, also for its dead letters and
    assignments.

    Subclass it and declare settings as fields. Give the Flink sink a `uid`. One that commits with
    checkpoints, such as `FileSink`, writes exactly once. The folder in `directory` is created before the
    start.

    >>> class Shout(extend.SinkConnector):
    ...     def write(self, stream):
    ...         stream.map(lambda result: str(result.answer).upper()).print()
    >>> extend.Connector(sink=Shout).source is None
    True
    """

    takes_dead_letters: ClassVar[bool] = False

    def write(self, stream: DataStream) -> None:
        """Add a sink for `stream`, which holds `fb.Result` objects or `fb.DeadLetter` objects."""
        raise NotImplementedError

    def attach(self, records: DataStream, written: Written) -> None:
        from forebay.api.objects import ObjectStream

        stream = ObjectStream(records, DeadLetter if written.what == DEAD_LETTERS else Result)
        with _named_errors(f"the connector {self.type!r} failed in write()"):
            self.write(stream)


class Application(ApplicationSettings):
    """A stateful program for the `application` of a pipeline file and for `forebay run NAME`.

    Subclass it, declare settings as fields, and return a program. The pipeline needs a `key`. `bound` limits
    the settings that must stay equal to resume from a checkpoint. `preset`: the other pipeline settings of
    `forebay run NAME`.

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
    """Limit for the state of a key. A step that exceeds it is undone; its event becomes a dead letter."""

    def program(self, *, event_time: bool) -> Program[Any]:
        """The program, which is pickled into the job. Called before anything starts, so errors are reported
        then."""
        raise NotImplementedError

    def problems(self, pipeline: ApplicationView) -> Iterator[Problem]:
        yield from super().problems(pipeline)
        try:
            with _named_errors(f"the application {self.type!r} failed in program()"):
                self.program(event_time=pipeline.event_time is not None)
        except SettingError as error:
            yield "application", str(error)

    def build(self, records: DataStream, options: InferenceOptions) -> InferenceStreams:
        from forebay.apps.graph import stateful

        return stateful(self, records, options)


class FleetState(Protocol):
    """A routing policy's read-only view of the replicas. Vectors have one number per replica."""

    @property
    def count(self) -> int:
        """Some entries may belong to replicas that have left."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """URLs."""
        ...

    @property
    def available(self) -> NDArray[np.bool_]: ...

    @property
    def requests(self) -> Vector: ...

    @property
    def waiting(self) -> Vector: ...

    @property
    def external(self) -> Vector:
        """Requests of others, if the replica reports them."""
        ...

    @property
    def kv_tokens(self) -> Vector:
        """Tokens that the KV cache can hold; infinite if unknown."""
        ...

    def numbers(self) -> Sequence[int]:
        """The available replicas, at least one."""
        ...


class RoutingPolicy(Protocol):
    """Chooses the replica for a request; a pipeline names it under `routing`.

    The entry point is called with a seed and returns the policy. The policy may keep state, but the same
    calls in the same order must give the same choices.

    >>> class First:
    ...     def __init__(self, seed: int) -> None:
    ...         pass
    ...     def choose(self, demand, cached, fleet, now_s):
    ...         return fleet.numbers()[0]
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: FleetState, now_s: float) -> int:
        """The number of an available replica; must not block: it is called on the event loop for every
        request.

        `cached`: estimated tokens of the prompt in each replica's prefix cache.
        """
        ...
