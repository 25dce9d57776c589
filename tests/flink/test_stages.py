"""The function around a stage, without Flink: its state is sufficient and bounded."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from tests.harness.metric_group import Group

from forebay.codec import pack_state
from forebay.errors import ForebayError
from forebay.flink import stages
from forebay.flink.shards import flink_keys
from forebay.flink.stages import StageFunction, message, message_key, payload
from forebay.flink.types import END_OF_INPUT_MS


class Numbers:
    """Sums numbers, and emits the sum at `close`; `size` bytes of state."""

    def __init__(self, size: int = 10) -> None:
        self.sum = 0
        self._size = size

    def take(self, data: bytes) -> list[tuple[int, bytes]]:
        self.sum += int(data)
        return [(0, b"early")] if self.sum % 10 == 0 else []

    def due_ms(self, data: bytes) -> int:
        return 1000

    def close(self, time_ms: int) -> list[tuple[int, bytes]]:
        return [(1, b"%d at %d" % (self.sum, time_ms))]

    def finish(self) -> list[tuple[int, bytes]]:
        return [(0, b"end")]

    def to_bytes(self) -> bytes:
        return b"%d" % self.sum + b" " * self._size

    def restore(self, data: bytes) -> None:
        self.sum = int(data)


class State:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.log: list[bytes] = []

    @property
    def snapshot(self) -> bytes | None:
        return self.values.get("snapshot")

    @property
    def size(self) -> int:
        return len(self.snapshot or b"") + sum(map(len, self.log))


class Context:
    def __init__(self, state: State, now_ms: int = 0) -> None:
        self.state, self.now_ms = state, now_ms
        self.event_timers: set[int] = set()
        self.wall_timers: set[int] = set()
        self.metrics = Group("book")

    def get_metrics_group(self) -> Group:
        return self.metrics

    def get_state(self, descriptor: Any) -> Any:
        name, values = descriptor.get_name(), self.state.values
        return SimpleNamespace(
            value=lambda: values.get(name), update=lambda data: values.__setitem__(name, data)
        )

    def get_list_state(self, _descriptor: Any) -> Any:
        return SimpleNamespace(
            get=lambda: list(self.state.log), add=self.state.log.append, clear=self.state.log.clear
        )

    def get_current_key(self) -> int:
        return flink_keys(2)[1]

    def timer_service(self) -> Any:
        return SimpleNamespace(
            register_event_time_timer=self.event_timers.add,
            register_processing_time_timer=self.wall_timers.add,
            current_processing_time=lambda: self.now_ms,
        )


@pytest.fixture(autouse=True)
def _keys_without_flink(monkeypatch: pytest.MonkeyPatch) -> None:
    def held_keys(context: Context, *_: str) -> Iterator[tuple[int, Context]]:
        if context.state.size:
            yield context.get_current_key(), context

    monkeypatch.setattr(stages, "held_keys", held_keys)


def opened(state: State, *, size: int = 10, now_ms: int = 0, **options: Any) -> tuple[StageFunction, Context]:
    function = StageFunction(lambda _, shard: Numbers(size), shards=2, next_shards=2, **options)
    context = Context(state, now_ms)
    function.open(context)
    return function, context


def take(function: StageFunction, context: Context, number: int) -> list[bytes]:
    return list(function.process_element(message(context.get_current_key(), b"%d" % number), context))


def test_open_work_is_reported_also_after_a_restore() -> None:
    state = State()
    for total in (10, 20):
        function, context = opened(state, open_now=lambda stage: stage.sum)
        take(function, context, 5)
        assert context.metrics.values()["open_findings"] == total - 10
        take(function, context, 5)
        assert context.metrics.values()["open_findings"] == total


def test_messages_are_keyed_by_shard() -> None:
    function, context = opened(State())
    assert take(function, context, 5) == []
    assert [payload(each) for each in take(function, context, 5)] == [b"early"]
    (closed,) = function.on_timer(999, context)
    assert (message_key(closed), payload(closed)) == (flink_keys(2)[1], b"10 at 1000")
    assert context.event_timers == {999, END_OF_INPUT_MS}
    assert [payload(each) for each in function.on_timer(END_OF_INPUT_MS, context)] == [b"end"]


@dataclass(frozen=True)
class Limits:
    least: int
    named: tuple[str, ...] = ("a", "b")


class Reached:
    """Reports once that its sum has reached a limit."""

    def __init__(self, limits: Limits, shard: int) -> None:
        self.limits = limits
        self.sum, self.reported = 0, False

    def take(self, data: bytes) -> list[tuple[int, bytes]]:
        self.sum += int(data)
        if self.reported or self.sum < self.limits.least:
            return []
        self.reported = True
        return [(0, b"reached %d" % self.limits.least)]

    def due_ms(self, data: bytes) -> None:
        return None

    def to_bytes(self) -> bytes:
        return b"%d %d" % (self.sum, self.reported)

    def restore(self, data: bytes) -> None:
        self.sum, self.reported = (int(each) for each in data.split())


@pytest.mark.parametrize("log_bytes", [1, 1 << 16])
def test_other_settings_lose_and_repeat_no_output(monkeypatch: pytest.MonkeyPatch, log_bytes: int) -> None:
    """Inputs since the snapshot are applied again without their outputs, which new settings would change."""
    monkeypatch.setattr(stages, "MIN_LOG_BYTES", log_bytes)
    state, outputs = State(), []
    for least, numbers in ((100, [40, 20]), (50, [1]), (50, [1]), (200, [300])):
        function = StageFunction(Reached, Limits(least), shards=2, next_shards=2)
        context = Context(state)
        function.open(context)
        outputs.append([payload(each) for number in numbers for each in take(function, context, number)])
    assert outputs == [[], [b"reached 50"], [], []]
    assert function._settings_before() == Limits(200)


def test_settings_of_another_form_are_rejected() -> None:
    state = State()
    state.values["settings"] = pack_state({"most": 3})
    function = StageFunction(Reached, Limits(1), shards=2, next_shards=2)
    context = Context(state)
    function.open(context)
    with pytest.raises(ForebayError, match="the checkpoint's settings of a shard"):
        take(function, context, 1)


@pytest.mark.heavy
@pytest.mark.parametrize("size", [10, 5_000])
def test_restore_at_any_moment_changes_nothing(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(stages, "MIN_LOG_BYTES", 64)
    rng = random.Random(3)
    numbers = [rng.randrange(100) for _ in range(300)]

    def run(kills: frozenset[int]) -> list[bytes]:
        state = State()
        function, context = opened(state, size=size)
        outputs = []
        for index, number in enumerate(numbers):
            if index in kills:
                function, context = opened(state, size=size)
            outputs += take(function, context, number)
            if index % 9 == 0:
                outputs += function.on_timer(index * 1000 - 1, context)
        return outputs

    straight = run(frozenset())
    assert run(frozenset(rng.sample(range(300), 40))) == straight
    assert run(frozenset(range(300))) == straight


@pytest.mark.heavy
def test_state_is_bounded_and_written_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MIN_LOG_BYTES", 64)
    state = State()
    function, context = opened(state, size=5_000)
    sizes, snapshots = [], set()
    for number in range(5_000):
        take(function, context, number)
        sizes.append(state.size)
        snapshots.add(state.snapshot)
    assert max(sizes) < 2.1 * 5_000
    assert len(snapshots) < 12


@pytest.mark.heavy
@pytest.mark.parametrize(("most", "held"), [(None, 3_000), (500, 500)])
def test_work_repeated_after_a_restore_is_bounded(
    monkeypatch: pytest.MonkeyPatch, most: int | None, held: int
) -> None:
    monkeypatch.setattr(stages, "MIN_LOG_BYTES", 64)
    state, longest = State(), 0
    function, context = opened(state, size=5_000, most_log_bytes=most)
    for number in range(3_000):
        if number % 400 == 399:
            function, context = opened(state, size=5_000, most_log_bytes=most)
        take(function, context, number)
        longest = max(longest, sum(map(len, state.log)))
    assert 0.8 * held < longest < 2 * held


def test_clock_closes_windows_in_time() -> None:
    state = State()
    function, context = opened(state, wait_ms=500)
    context.now_ms = 1_000
    take(function, context, 1)
    take(function, context, 2)
    assert context.wall_timers == {1_500}
    assert [payload(each) for each in function.on_timer(1_500, context)] == [b"3 at 0"]
    context.now_ms = 9_000
    take(function, context, 4)
    assert context.wall_timers == {1_500, 9_500}


@pytest.mark.parametrize("before_ms", [0, 3_600_000])
def test_restored_windows_close_in_time_despite_old_timers(before_ms: int) -> None:
    state = State()
    function, context = opened(state, now_ms=before_ms, wait_ms=500)
    take(function, context, 1)
    function, context = opened(state, now_ms=7_000, wait_ms=500)
    assert context.wall_timers == {7_500}
    assert list(function.on_timer(before_ms + 500, context)) == []
    assert [payload(each) for each in function.on_timer(7_500, context)] == [b"1 at 0"]


@pytest.mark.parametrize(
    "snapshot", [b"junk", msgpack.packb((99, b"1", [])), msgpack.packb(3), pickle.dumps(b"1")]
)
def test_state_of_another_form_is_rejected(snapshot: bytes) -> None:
    state = State()
    state.values["snapshot"] = snapshot
    function, context = opened(state)
    with pytest.raises(ForebayError, match="the checkpoint's state of a shard"):
        take(function, context, 1)


def test_inputs_of_another_format_are_rejected() -> None:
    state = State()
    state.log = [msgpack.packb((99, 0, b"3"))]
    function, context = opened(state)
    with pytest.raises(ForebayError, match="the checkpoint's inputs of a shard: format 99"):
        take(function, context, 1)


@pytest.mark.parametrize(("emits_results", "marks"), [(True, 1), (False, 0)])
def test_only_results_are_a_reason_for_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, emits_results: bool, marks: int
) -> None:
    answered: list[int] = []
    made = SimpleNamespace(read=lambda: None, answered=lambda: answered.append(1))
    monkeypatch.setattr(stages, "ActivityMarks", lambda _: made)
    function, context = opened(State(), emits_results=emits_results)
    assert len(take(function, context, 10)) == 1
    assert len(answered) == marks
