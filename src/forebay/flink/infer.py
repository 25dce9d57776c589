"""`infer` and `infer_stateful`: put continuous inference into a Flink job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from pyflink.common import Types
from pyflink.datastream import DataStream

from forebay.clock import Clock
from forebay.errors import SettingError
from forebay.flink.event_time import TIMED, reassign_watermarks
from forebay.flink.keying import EventText, Keying, ToEvent
from forebay.flink.operator import DEAD_LETTERS, InferenceOperator
from forebay.flink.request_handler import InferenceSpec, OpenRequestHandler, ProgramRequestHandler
from forebay.flink.request_pool import Ordering, PollInterval
from forebay.flink.shards import MAX_PARALLELISM, shards_uid
from forebay.flink.thread_mode import check_environment
from forebay.flink.types import BYTES, check_uid_free, side_output
from forebay.stateful.budget import BudgetedMachines
from forebay.stateful.key_states import StateLimits
from forebay.stateful.machine import OpenMachines, stateless
from forebay.stateful.program import Program
from forebay.stateful.shard_executor import ProgramMachines

DEFAULT_SHARDS = 8
QUEUES = 16
"""A shard may queue this many times the capacity of events that wait for calls of their keys."""


@dataclass(frozen=True)
class InferenceStreams:
    """The outputs of an inference operator, streams of encoded records.

    `assignments`: results of single events, if an application has them.
    """

    results: DataStream
    dead_letters: DataStream
    assignments: DataStream | None = None


def infer(
    stream: DataStream,
    call: InferenceSpec,
    *,
    to_event: ToEvent | None = None,
    key: EventText | None = None,
    id: EventText | None = None,
    capacity: int = 64,
    ordering: Ordering = "unordered",
    shards: int = DEFAULT_SHARDS,
    event_time: bool = False,
    timeline: bool = False,
    parallelism: int | None = None,
    pace: PollInterval | None = None,
    clock: Clock | None = None,
    name: str = "infer",
    one_core: bool = False,
) -> InferenceStreams:
    """Ask the engine about every element of `stream`, exactly once in Flink's state.

    Elements are encoded records, or values that `to_event` converts. At most `capacity` requests are in
    flight per subtask; beyond that, the input is blocked. `shards` is at least the parallelism, and fixed for
    the life of a pipeline if order matters. With `event_time`, the output watermark never passes an event
    that is pending.

    `one_core`: the tasks run no code of users, so they may share a core (`flink/one_core.py`).

    Flink finds the state by `name`, unique in the job. Raises `SettingError` for contradicting settings.
    """
    if ordering not in get_args(Ordering):
        raise SettingError(f'ordering: expected "unordered" or "key", found {str(ordering)[:80]!r}')
    if ordering == "key" and key is None:
        raise SettingError("ordering by key needs a key")
    operator = InferenceOperator(
        OpenRequestHandler(call),
        _within_budget(stateless, call),
        capacity=capacity,
        ordering=ordering,
        pace=pace,
        event_time=event_time,
        clock=clock,
        opentelemetry=call.opentelemetry,
        one_core=one_core,
    )
    needs_key = call.budget_pico is not None
    if needs_key and key is None:
        raise SettingError("a budget needs a key")
    keying = Keying(
        shards=shards,
        key=key,
        needs_key=needs_key,
        id=id,
        to_event=to_event,
        timeline=timeline,
        one_core=one_core,
    )
    bound = ordering == "key" or needs_key
    return _attach(stream, keying, operator, shards=shards, bound=bound, parallelism=parallelism, name=name)


def infer_stateful(
    stream: DataStream,
    program: Program[Any],
    call: InferenceSpec,
    *,
    key: EventText | None,
    to_event: ToEvent | None = None,
    id: EventText | None = None,
    capacity: int = 64,
    queue: int = 64,
    ttl_s: float | None = None,
    max_state_bytes: int = 262_144,
    shards: int = DEFAULT_SHARDS,
    event_time: bool = False,
    timeline: bool = False,
    parallelism: int | None = None,
    pace: PollInterval | None = None,
    clock: Clock | None = None,
    name: str = "infer",
    finding: Callable[[Any], str] | None = None,
) -> InferenceStreams:
    """Run `program` over `stream`: it sees its key's state before each call and the answer after it.

    A change of state, its outputs and its next call happen together, exactly once in Flink's state. At most
    `queue` events of a key wait for its call. A key is forgotten `ttl_s` after its last step (None: never).
    `call.prompt` and `call.schema` are not used. `finding` returns the kind of a result's answer, for counts.
    The rest is as for `infer`; `shards` is fixed for the life of the state.
    """
    if key is None:
        raise SettingError("a stateful program needs a key")
    if queue < 1:
        raise SettingError(f"queue must be at least 1, found {queue}")
    if ttl_s is not None and ttl_s <= 0:
        raise SettingError(f"ttl_s must be positive, found {ttl_s:g}")
    operator = InferenceOperator(
        OpenRequestHandler(call, ProgramRequestHandler),
        _within_budget(
            ProgramMachines(
                program, StateLimits(ttl_s, max_state_bytes, queue, QUEUES * capacity), timeline=timeline
            ),
            call,
        ),
        capacity=capacity,
        pace=pace,
        event_time=event_time,
        clock=clock,
        finding=finding,
        opentelemetry=call.opentelemetry,
    )
    keying = Keying(shards=shards, key=key, needs_key=True, id=id, to_event=to_event, timeline=timeline)
    return _attach(stream, keying, operator, shards=shards, bound=True, parallelism=parallelism, name=name)


def _within_budget(machines: OpenMachines, call: InferenceSpec) -> OpenMachines:
    if call.budget_pico is None:
        return machines
    return BudgetedMachines(machines, call.budget_pico, call.most_pico)


def _attach(
    stream: DataStream,
    keying: Keying,
    operator: InferenceOperator,
    *,
    shards: int,
    bound: bool,
    parallelism: int | None,
    name: str,
) -> InferenceStreams:
    wanted = parallelism or stream.get_execution_environment().get_parallelism()
    if not 1 <= shards <= MAX_PARALLELISM:
        raise SettingError(f"shards must be from 1 to {MAX_PARALLELISM}, found {shards}")
    if wanted > shards:
        raise SettingError(
            f"parallelism {wanted} needs as many shards, found {shards}: set shards={wanted} or more"
        )
    check_environment(stream.get_execution_environment())
    check_uid_free(stream.get_execution_environment(), name, "infer")
    uid = shards_uid(stream.get_execution_environment(), name, shards, bound=bound)
    # At the stream's own parallelism: at the environment's default, records would be rebalanced and lose
    # their order, and another parallelism would change the graph, so that state would not be found again.
    keys = stream.flat_map(keying, Types.TUPLE([Types.INT(), BYTES]))
    keys.name(f"{name}: key").set_parallelism(stream._j_data_stream.getParallelism())
    keyed = keys.key_by(lambda element: element[0], Types.INT())
    answered = keyed.process(operator, TIMED if operator.event_time else BYTES).name(name).uid(uid)
    answered.set_parallelism(wanted)
    answered.set_max_parallelism(MAX_PARALLELISM)
    dead_letters = side_output(answered, DEAD_LETTERS)
    results = reassign_watermarks(answered, name) if operator.event_time else answered
    return InferenceStreams(results, dead_letters)
