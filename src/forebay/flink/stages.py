"""A keyed Flink function around state that is too large to be written at each change.

Flink's state holds a snapshot and later inputs. A restore applies those inputs again and drops their outputs,
so a stage must be deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from pyflink.common import Types
from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor

from forebay.codec import DAMAGED, damaged, pack_state, unpack_state
from forebay.flink.job_marks import ActivityMarks
from forebay.flink.jvm_task import held_keys, number_gauge
from forebay.flink.metric_names import GROUP, OPEN_FINDINGS
from forebay.flink.shards import MAX_PARALLELISM, flink_keys
from forebay.flink.types import BYTES, END_OF_INPUT_MS, SET_BACK_MS, STATE

MIN_LOG_BYTES = 1 << 16
INPUT, CLOSED, WAITED, FINISHED = range(4)
SETTINGS = "settings of a shard"


class Stage(Protocol):
    def take(self, data: bytes) -> list[tuple[int, bytes]]: ...

    def due_ms(self, data: bytes) -> int | None:
        """The event time at which this input needs `close`; None: never."""
        ...

    def close(self, time_ms: int) -> list[tuple[int, bytes]]: ...

    def finish(self) -> list[tuple[int, bytes]]: ...

    def to_bytes(self) -> bytes: ...

    def restore(self, data: bytes) -> None:
        """Raises `MalformedRecord` for other bytes."""
        ...


@dataclass(slots=True)
class _Held:
    stage: Stage
    most_bytes: int
    log_bytes: int = 0
    due: set[int] = field(default_factory=set)
    waits_ms: int | None = None


class StageFunction(KeyedProcessFunction):
    """Runs a stage per shard: takes messages keyed by `message_key`, emits messages of the next stage.

    `open_stage` gets `settings`, a dataclass or None, and the shard. Other settings than before a restore
    apply to later inputs only: with them, inputs that are applied again would have had other outputs.

    With `wait_ms`, `close(0)` is called at most that long (wall clock) after an input. Outputs cause a
    checkpoint only if it `emits_results`. `open_now` counts a stage's unfinished items, for the gauge
    `OPEN_FINDINGS`.
    """

    def __init__(
        self,
        open_stage: Callable[[Any, int], Stage],
        settings: Any = None,
        *,
        shards: int,
        next_shards: int,
        emits_results: bool = True,
        wait_ms: int | None = None,
        most_log_bytes: int | None = None,
        open_now: Callable[[Any], int] | None = None,
    ) -> None:
        self._open_stage = open_stage
        self._settings = settings
        self._shards = shards
        self._next_shards = next_shards
        self._emits_results = emits_results
        self._wait_ms = wait_ms
        self._most_log_bytes = most_log_bytes
        self._open_now = open_now

    def open(self, runtime_context: RuntimeContext) -> None:
        self._snapshot = runtime_context.get_state(ValueStateDescriptor("snapshot", STATE))
        self._log = runtime_context.get_list_state(ListStateDescriptor("since", STATE))
        self._made_with = runtime_context.get_state(ValueStateDescriptor("settings", STATE))
        self._held: dict[int, _Held] = {}
        self._marks = ActivityMarks(runtime_context)
        if self._open_now is not None:
            group = runtime_context.get_metrics_group().add_group(GROUP)
            self._open = number_gauge(group, OPEN_FINDINGS)
        self._shard_of = {key: shard for shard, key in enumerate(flink_keys(self._shards))}
        self._next_keys = flink_keys(self._next_shards)
        self._keys = partial(held_keys, runtime_context, "snapshot", "since")
        self._seen_ms = 0
        if self._wait_ms is not None:
            # Restored timers may be far off if the clock was set back.
            for key, ctx in self._keys():
                self._recover(key, ctx)

    def process_element(self, value: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        self._marks.read()
        data = payload(value)
        held = self._held.get(ctx.get_current_key()) or self._recover(ctx.get_current_key(), ctx)
        due_ms = held.stage.due_ms(data)
        if due_ms is not None and due_ms not in held.due:
            held.due.add(due_ms)
            # A watermark includes its own time.
            ctx.timer_service().register_event_time_timer(due_ms - 1)
        yield from self._apply(held, (INPUT, data))
        self._wait(held, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        held = self._held.get(ctx.get_current_key()) or self._recover(ctx.get_current_key(), ctx)
        if timestamp == held.waits_ms:
            held.waits_ms = None
            self._look_at_clock(ctx)
            yield from self._apply(held, (WAITED, b""))
        elif timestamp >= END_OF_INPUT_MS:
            yield from self._apply(held, (FINISHED, b""))
        elif self._wait_ms is None:
            held.due.discard(timestamp + 1)
            yield from self._apply(held, (CLOSED, timestamp + 1))

    def _wait(self, held: _Held, ctx: KeyedProcessFunction.Context) -> None:
        if self._wait_ms is not None:
            now_ms = self._look_at_clock(ctx)
            if held.waits_ms is None:
                self._set_timer(held, now_ms + self._wait_ms, ctx)

    def _look_at_clock(self, ctx: KeyedProcessFunction.Context) -> int:
        now_ms: int = ctx.timer_service().current_processing_time()
        set_back = now_ms < self._seen_ms - SET_BACK_MS
        self._seen_ms = now_ms
        if set_back and self._wait_ms is not None:
            for key, of_key in self._keys():
                if key in self._held and self._held[key].waits_ms is not None:
                    self._set_timer(self._held[key], now_ms + self._wait_ms, of_key)
        return now_ms

    def _set_timer(self, held: _Held, time_ms: int, ctx: KeyedProcessFunction.Context) -> None:
        held.waits_ms = time_ms
        ctx.timer_service().register_processing_time_timer(time_ms)

    def _apply(self, held: _Held, entry: tuple[int, Any]) -> Iterator[bytes]:
        outputs = _done(held.stage, entry)
        packed = pack_state(*entry)
        held.log_bytes += len(packed)
        if held.log_bytes < held.most_bytes:
            self._log.add(packed)
        else:
            self._compact(held)
        if outputs:
            self._report_open()
        for shard, data in outputs:
            if self._emits_results:
                self._marks.answered()
            yield message(self._next_keys[shard], data)

    def _report_open(self) -> None:
        if self._open_now is not None:
            self._open.update(sum(self._open_now(held.stage) for held in self._held.values()))

    def _compact(self, held: _Held) -> None:
        snapshot = held.stage.to_bytes()
        self._snapshot.update(pack_state(snapshot))
        self._log.clear()
        held.log_bytes, held.most_bytes = 0, self._log_bytes_beside(len(snapshot))

    def _log_bytes_beside(self, snapshot_bytes: int) -> int:
        return max(MIN_LOG_BYTES, min(snapshot_bytes, self._most_log_bytes or snapshot_bytes))

    def _recover(self, key: int, ctx: KeyedProcessFunction.Context) -> _Held:
        before = self._settings_before()
        held = self._held[key] = _Held(self._open_stage(before, self._shard_of[key]), MIN_LOG_BYTES)
        found = self._snapshot.value()
        if found is not None:
            (snapshot,) = unpack_state(found, "state of a shard")
            held.stage.restore(snapshot)
            held.most_bytes = self._log_bytes_beside(len(snapshot))
        for packed in self._log.get() or ():
            held.log_bytes += len(packed)
            _done(held.stage, unpack_state(packed, "inputs of a shard"))
        if before != self._settings:
            snapshot = held.stage.to_bytes()
            held.stage = self._open_stage(self._settings, self._shard_of[key])
            held.stage.restore(snapshot)
            self._made_with.update(_settings_bytes(self._settings))
            self._compact(held)
        self._report_open()
        ctx.timer_service().register_event_time_timer(END_OF_INPUT_MS)
        # A restored timer fires at once, and is not one of this run.
        self._wait(held, ctx)
        return held

    def _settings_before(self) -> Any:
        made_with = self._made_with.value()
        if made_with is None:
            self._made_with.update(_settings_bytes(self._settings))
            return self._settings
        (values,) = unpack_state(made_with, SETTINGS)
        if values is None:
            return None
        try:
            tuples = {name: tuple(each) for name, each in values.items() if isinstance(each, list)}
            return replace(self._settings, **{**values, **tuples})
        except DAMAGED as error:
            raise damaged(SETTINGS, error) from None


def _settings_bytes(settings: Any) -> bytes:
    return pack_state(None if settings is None else asdict(settings))


def _done(stage: Stage, entry: Any) -> list[tuple[int, bytes]]:
    kind, value = entry
    if kind == INPUT:
        return stage.take(value)
    if kind == FINISHED:
        return stage.finish()
    return stage.close(value if kind == CLOSED else 0)


def message(key: int, data: bytes) -> bytes:
    return key.to_bytes(4, "big") + data


def message_key(value: bytes) -> int:
    return int.from_bytes(bytes(value[:4]), "big")


def payload(value: bytes) -> bytes:
    return bytes(value)[4:]


def staged(stream: DataStream, function: KeyedProcessFunction, *, parallelism: int, name: str) -> DataStream:
    done = stream.key_by(message_key, Types.INT()).process(function, BYTES).name(name).uid(name)
    return done.set_parallelism(parallelism).set_max_parallelism(MAX_PARALLELISM)
