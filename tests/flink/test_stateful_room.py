"""The stateful operator without Flink: how long it blocks its input where there is no room, and what it does
with events that come after the end."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pyflink.datastream import TimeDomain

from forebay.codec import decode, encode
from forebay.flink import inference
from forebay.flink.inference import Shard
from forebay.flink.intervals import ANSWERS, FACTOR, RoomWait
from forebay.flink.metrics import InferenceCounters
from forebay.flink.request_pool import Load
from forebay.flink.stateful import END_ROUNDS, LEAST_SHARE, StatefulFunction
from forebay.flink.watermarks import LowWatermark, MinTracker
from forebay.records import Event, KeyedEvent
from forebay.stateful.due import PER_CHUNK
from forebay.stateful.key_states import Limits
from forebay.stateful.program import Moment, Output, Program, Step, Timer
from forebay.stateful.shard_executor import ShardExecutor, Times
from forebay.stateful.stores import DictStore, Stores
from forebay.testing.clock import ManualClock
from forebay.testing.stateful import AskLater, Remember

CAPACITY = 16


class NoAnswers:
    """Calls of an engine that is away: none is ever answered, and waiting takes its time."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.submitted = 0

    def has_room(self) -> bool:
        return self.submitted < CAPACITY

    def may_queue(self) -> bool:
        return self.submitted < 2 * CAPACITY

    def wait_for_room(self, timeout_s: float) -> bool:
        self._clock.advance(timeout_s)
        return self.has_room()

    def wait_ready(self, shard: int, timeout_s: float) -> bool:
        self._clock.advance(timeout_s)
        return False

    def take(self, shard: int) -> list[Any]:
        return []

    @property
    def load(self) -> Load:
        return Load(pending=max(0, self.submitted - CAPACITY), in_flight=CAPACITY, finished=0)

    @property
    def finished(self) -> int:
        return 0


class Metrics:
    def due(self, now_s: float) -> bool:
        return False


@pytest.mark.parametrize("keys", [1, 3, 1_000_000])
def test_what_waits_grows_with_the_logarithm_of_an_outage(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "is_cancelled", lambda: False)
    clock = ManualClock(monotonic_s=0.0)
    operator: Any = StatefulFunction(None, Remember(), capacity=CAPACITY, queue=8, clock=clock)  # type: ignore[arg-type]
    calls = NoAnswers(clock)
    turns = ShardExecutor(Remember(), Limits(), Stores(DictStore(), DictStore(), DictStore()))
    operator._calls, operator._metrics, operator._turns = calls, Metrics(), {0: turns}
    operator._room_wait = RoomWait(CAPACITY)
    operator._full_places, operator._counts = {}, type("C", (), {"waited_ms": 0})()
    accepted_by: list[float] = []
    while clock.monotonic_s() < 3600:
        key = f"k{len(accepted_by) % keys}"
        for _ in operator._make_room(0, None, key, None):
            raise AssertionError("nothing leaves")
        calls.submitted += not turns.awaits(key)
        item = KeyedEvent(f"e{len(accepted_by)}", key, Event(b"", {"n": 1}), 0)
        turns.event(item, encode(item), Times(0))
        accepted_by.append(clock.monotonic_s())
        assert len(accepted_by) < 10_000, "the queue grows without bound"
    # Room for the queues of all keys or twice the slots; then ever more slowly: as many in the tenfold time.
    within = [sum(at <= end_s for at in accepted_by) for end_s in (36, 360, 3600)]
    grown = [within[1] - within[0], within[2] - within[1]]
    expected = math.log(10) * (LEAST_SHARE if keys <= 3 else ANSWERS / FACTOR)
    assert grown == pytest.approx([expected, expected], rel=0.05)


class ToldAtOnce(Program[int]):
    """Asks nothing; each event sets a timer, which gives how many events there were."""

    def initial(self, key: str) -> int:
        return 0

    def on_event(self, state: int, event: Event, now: Moment) -> Step[int]:
        return Step(state + 1, timers={"told": Timer(now.wall_ms + 60_000, "wall")})

    def on_timer(self, state: int, name: str, time_ms: int, now: Moment) -> Step[int]:
        return Step(state, outputs=(Output(state),))


class Taken(NoAnswers):
    """Calls that wait for a slot until a test says that some are over."""

    def submit(self, shard: int, item: Any, *, reissued: bool = False) -> None:
        self.submitted += 1


class AtTime:
    """The context of a timer of event time."""

    def timer_service(self) -> AtTime:
        return self

    def current_watermark(self) -> int:
        return 5_000

    def get_current_key(self) -> int:
        return 0

    def time_domain(self) -> TimeDomain:
        return TimeDomain.EVENT_TIME

    def register_event_time_timer(self, time_ms: int) -> None:
        pass

    def register_processing_time_timer(self, time_ms: int) -> None:
        pass


def test_timers_of_very_many_keys_that_are_due_at_once_wait_for_room() -> None:
    clock, keys = ManualClock(monotonic_s=0.0), 1000
    program = AskLater()
    operator: Any = StatefulFunction(None, program, capacity=CAPACITY, clock=clock)  # type: ignore[arg-type]
    calls = operator._calls = Taken(clock)
    stores = Stores(DictStore(), DictStore(), DictStore())
    turns, shard = ShardExecutor(program, Limits(), stores), Shard()
    operator._turns, operator._shards, operator._counts = {0: turns}, {0: shard}, InferenceCounters()
    operator._low, operator._read, operator._heads, operator._overdue = LowWatermark(), MinTracker(), {}, {}
    operator._metrics, operator._early = type("M", (), {"tell_oldest": lambda self: None})(), False
    armed = []
    operator._arm, operator._event_time = lambda shard, ctx: armed.append(shard.live or shard.waits), False
    for n in range(keys):
        item = KeyedEvent(f"e{n}", f"k{n}", Event(b"", {"n": n}, 0), 0)
        assert list(operator._do(0, shard, turns.event(item, encode(item), Times(0)), AtTime())) == []
    most = 0
    for _ in range(keys):
        before = calls.submitted
        assert list(operator.on_timer(1_000, AtTime())) == []
        most = max(most, calls.submitted)
        if calls.submitted == before and not turns.due:
            break
        # Whatever else is awaited, the shard is woken again.
        assert armed[-1]
        operator._counts.results += calls.submitted
        calls.submitted = 0
    assert operator._counts.results == keys
    assert most <= CAPACITY + PER_CHUNK


class Ended:
    """The context of an operator whose input has ended: no timer fires any more."""

    def timer_service(self) -> Ended:
        return self

    def current_watermark(self) -> int:
        return 2**63 - 1

    def register_processing_time_timer(self, time_ms: int) -> None:
        pass


def test_timers_of_events_that_come_after_the_final_watermark_fire_however_many_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when one source ends while another is idle, and then goes on."""
    monkeypatch.setattr(inference, "is_cancelled", lambda: False)
    clock = ManualClock(monotonic_s=0.0)
    program = ToldAtOnce()
    operator: Any = StatefulFunction(None, program, capacity=CAPACITY, clock=clock)  # type: ignore[arg-type]
    operator._calls, operator._counts = NoAnswers(clock), InferenceCounters()
    operator._turns = {0: ShardExecutor(program, Limits(), Stores(DictStore(), DictStore(), DictStore()))}
    operator._shards, operator._low, operator._read = {0: Shard()}, LowWatermark(), MinTracker()
    operator._metrics = type("M", (), {"tell_oldest": lambda self: None, "due": lambda self, now_s: False})()
    operator._room_wait = RoomWait(CAPACITY)
    operator._full_places, operator._heads, operator._rounds, operator._overdue = {}, {}, {}, {}
    operator._arm, operator._ended = lambda *_: None, True
    given = []
    for number in range(3 * END_ROUNDS):
        data = encode(KeyedEvent(f"e{number}", "a", Event(b"", {}), 0))
        given += [decode(result).answer for result in operator.process_element((0, data), Ended())]
    assert given == list(range(1, 3 * END_ROUNDS + 1))
