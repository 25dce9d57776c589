"""Calls of one subtask: capacity, wake-ups, order, defects. The test releases answers; nothing depends on
time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ForebayError, SettingError
from forebay.flink import request_pool as module
from forebay.flink.one_core import LOOK_S, OneCore
from forebay.flink.request_pool import HELD_PER_SLOT, MOST_TAKEN, Answer, Ordering, RequestPool
from forebay.records import Event, KeyedEvent, Result, Usage
from forebay.testing.waiting import wait_until

TIMEOUT_S = 20.0


def item(id: str, key: str = "") -> KeyedEvent:
    return KeyedEvent(id=id, key=key, event=Event(raw=b"", fields={}), read_ms=0)


def result(id: str) -> Result:
    return Result(
        id=id, key="", fields={}, answer=id, usage=Usage(), attempts=1, read_ms=0, elapsed_s=0, called_s=0
    )


class Scripted:
    """An answerer that answers an id on command, and records what it received."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.in_flight = 0
        self.max_in_flight = 0
        self.closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._changed = threading.Condition()

    async def open(self) -> Scripted:
        self._loop = asyncio.get_running_loop()
        return self

    def accept(self, item: KeyedEvent, *, restored: bool) -> None:
        pass

    async def answer(self, item: KeyedEvent) -> Answer:
        assert self._loop is not None
        answer = self._answers[item.id] = self._loop.create_future()
        with self._changed:
            self.started.append(item.id)
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
            self._changed.notify_all()
        try:
            return await answer
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        self.closed = True

    def wait_started(self, *ids: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(ids) <= set(self.started), TIMEOUT_S), (
                f"{set(ids) - set(self.started)} were not started"
            )

    def finish(self, id: str, answer: Answer | BaseException | None = None) -> None:
        def act() -> None:
            if isinstance(answer, asyncio.CancelledError):
                self._answers[id].cancel()
            elif isinstance(answer, BaseException):
                self._answers[id].set_exception(answer)
            else:
                self._answers[id].set_result(answer or result(id))

        assert self._loop is not None
        self._loop.call_soon_threadsafe(act)


Open = Callable[..., tuple[RequestPool, Scripted]]


@pytest.fixture
def open_calls() -> Iterator[Open]:
    opened = []

    def open_(capacity: int, ordering: Ordering = "unordered") -> tuple[RequestPool, Scripted]:
        script = Scripted()
        calls = RequestPool(script.open, capacity=capacity, ordering=ordering)
        opened.append(calls)
        calls.start()
        return calls, script

    yield open_
    for calls in opened:
        calls.close()


def take(calls: RequestPool, shard: int = 0, n: int = 1) -> list[str]:
    ids: list[str] = []
    while len(ids) < n:
        assert calls.wait_ready(shard, TIMEOUT_S)
        ids += [id for id, _ in calls.take(shard)]
    return ids


def test_capacity_is_never_exceeded_and_free_slots_refill(open_calls: Open) -> None:
    calls, script = open_calls(2)
    for i in range(5):
        calls.submit(0, item(str(i)))
    script.wait_started("0", "1")
    assert (calls.load.pending, calls.load.in_flight) == (3, 2)
    for done, next_ in (("1", "2"), ("2", "3"), ("0", "4")):
        script.finish(done)
        # Nobody takes the answer, and still the slot is used.
        script.wait_started(next_)
    script.finish("3")
    script.finish("4")
    assert sorted(take(calls, n=5)) == ["0", "1", "2", "3", "4"]
    assert script.max_in_flight == 2
    assert script.started == ["0", "1", "2", "3", "4"]
    assert (calls.load.pending, calls.load.in_flight, calls.load.finished) == (0, 0, 0)


def test_answers_stay_in_their_shards_mailbox(open_calls: Open) -> None:
    calls, script = open_calls(4)
    calls.submit(7, item("a"))
    calls.submit(9, item("b"))
    script.wait_started("a", "b")
    script.finish("b")
    assert calls.wait_any_ready(TIMEOUT_S)
    assert calls.take(7) == []
    assert take(calls, 9) == ["b"]
    assert not calls.wait_any_ready(0.0)
    assert not calls.wait_ready(7, 0.0)


def test_room_wait_ends_with_a_call(open_calls: Open) -> None:
    calls, script = open_calls(1)
    assert calls.has_room()
    calls.submit(0, item("a"))
    assert not calls.has_room()
    assert not calls.wait_for_room(0.0)
    script.wait_started("a")
    threading.Thread(target=script.finish, args=("a",)).start()
    assert calls.wait_for_room(TIMEOUT_S)


def test_starting_call_always_takes_room(open_calls: Open) -> None:
    calls, script = open_calls(1)
    seen: list[bool] = []

    class Watched(deque[Any]):
        """What the operator's thread may see while the loop's thread removes a call."""

        def popleft(self) -> Any:
            taken = super().popleft()
            seen.append(calls.has_room())
            return taken

    calls._pending = Watched()
    calls.submit(0, item("a"))
    script.wait_started("a")
    assert seen == [False]


def test_capacity_calls_may_queue_for_a_slot(open_calls: Open) -> None:
    calls, scripted = open_calls(capacity=2)
    for i in range(4):
        assert calls.may_queue()
        calls.submit(0, item(f"e{i}"))
        if i == 1:
            scripted.wait_started("e0", "e1")
    assert not calls.has_room()
    assert not calls.may_queue()
    scripted.finish("e0")
    scripted.wait_started("e2")
    assert calls.may_queue()
    assert not calls.has_room()
    for id in ("e1", "e2"):
        scripted.finish(id)
    scripted.wait_started("e3")
    assert calls.wait_for_room(TIMEOUT_S)
    assert scripted.max_in_flight == 2


def test_id_may_be_reused_once_emitted(open_calls: Open) -> None:
    calls, script = open_calls(1, "key")
    for _ in range(3):
        script.started.clear()
        calls.submit(0, item("a", "k"))
        script.wait_started("a")
        script.finish("a")
        assert take(calls) == ["a"]


def test_excess_restored_calls_respect_capacity_and_admit_input(open_calls: Open) -> None:
    calls, script = open_calls(2)
    for i in range(6):
        calls.submit(0, item(str(i)), restored=True)
    script.wait_started("0", "1")
    assert not calls.has_room()
    for i in range(6):
        script.wait_started(str(i))
        script.finish(str(i))
        take(calls)
        # One event for two answers: the queue shrinks, and input continues.
        assert calls.has_room() == (i % 2 == 0)
        if calls.has_room():
            calls.submit(0, item(f"new {i}"))
    assert calls.load.pending + calls.load.in_flight == 3
    assert script.max_in_flight == 2
    assert script.started[:6] == [str(i) for i in range(6)]


def test_held_ordered_answers_block_input_but_not_forever(open_calls: Open) -> None:
    calls, script = open_calls(2, "key")
    calls.submit(0, item("first", "k"))
    script.wait_started("first")
    held = HELD_PER_SLOT * 2
    for i in range(held):
        assert calls.has_room()
        calls.submit(0, item(str(i), "k"))
        script.wait_started(str(i))
        script.finish(str(i))
        wait_until(lambda i=i: calls.load.finished == i + 1, TIMEOUT_S)
    # A slot is free, but what is held back has reached its bound.
    assert calls.load.in_flight == 1
    assert not calls.has_room()
    assert not calls.may_queue()
    assert calls.take(0) == []
    script.finish("first")
    assert calls.wait_for_room(TIMEOUT_S)
    assert take(calls, n=held + 1) == ["first", *map(str, range(held))]


@pytest.mark.parametrize("defect", [ValueError("a bug"), asyncio.CancelledError()])
def test_answerer_defect_is_an_error_not_a_lost_record(open_calls: Open, defect: BaseException) -> None:
    calls, script = open_calls(1)
    calls.submit(0, item("a"))
    script.wait_started("a")
    threading.Thread(target=script.finish, args=("a", defect)).start()
    # Each wait ends with it, and so the operator's thread learns of it wherever it is.
    for act in (
        lambda: calls.wait_for_room(TIMEOUT_S),
        lambda: calls.wait_ready(0, TIMEOUT_S),
        lambda: calls.wait_any_ready(TIMEOUT_S),
        lambda: calls.take(0),
        lambda: calls.take(99),
    ):
        with pytest.raises(ForebayError, match="failed unexpectedly"):
            act()


def test_closing_aborts_calls_and_closes_the_engine() -> None:
    script = Scripted()
    calls = RequestPool(script.open, capacity=2)
    calls.start()
    for i in range(4):
        calls.submit(0, item(str(i)))
    script.wait_started("0", "1")
    calls.close()
    assert script.closed
    assert script.in_flight == 0
    assert sorted(script.started) == ["0", "1"]
    assert not any(thread.name == "forebay-calls" for thread in threading.enumerate())
    calls.close()


def test_failed_engine_open_raises_and_leaves_no_thread() -> None:
    async def open_() -> Scripted:
        raise SettingError("no key")

    calls = RequestPool(open_, capacity=1)
    with pytest.raises(SettingError, match="no key"):
        calls.start()
    calls.close()
    assert not any(thread.name == "forebay-calls" for thread in threading.enumerate())


def test_failed_engine_close_leaves_no_thread() -> None:
    class Broken(Scripted):
        async def close(self) -> None:
            raise OSError("stuck")

    calls = RequestPool(Broken().open, capacity=1)
    calls.start()
    with pytest.raises(OSError, match="stuck"):
        calls.close()
    assert not any(thread.name == "forebay-calls" for thread in threading.enumerate())


def test_call_that_ignores_its_cancellation_does_not_block_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Scripted):
        async def answer(self, item: KeyedEvent) -> Answer:
            while True:
                with suppress(asyncio.CancelledError):
                    return await super().answer(item)

    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    script = Stubborn()
    calls = RequestPool(script.open, capacity=1)
    calls.start()
    calls.submit(0, item("0"))
    script.wait_started("0")
    calls.close()
    assert "a call ignored its cancellation" in caplog.text
    calls._thread.join(TIMEOUT_S)


class Immediate:
    """Answers after as many turns of the loop as the id's number."""

    def __init__(self) -> None:
        self.in_flight = self.max_in_flight = 0

    async def open(self) -> Immediate:
        return self

    def accept(self, item: KeyedEvent, *, restored: bool) -> None:
        pass

    async def answer(self, item: KeyedEvent) -> Answer:
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        for _ in range(int(item.id.split("-")[1])):
            await asyncio.sleep(0)
        self.in_flight -= 1
        return result(item.id)

    async def close(self) -> None:
        pass


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 4)), max_size=60),
    st.integers(1, 5),
    st.sampled_from(["unordered", "key"]),
)
def test_no_wake_up_is_lost_in_any_interleaving(
    plan: list[tuple[int, str, int]], capacity: int, ordering: Ordering
) -> None:
    answerer = Immediate()
    calls = RequestPool(answerer.open, capacity=capacity, ordering=ordering)
    calls.start()
    left: dict[int, list[str]] = {shard: [] for shard in range(4)}
    keys = {}
    try:
        for i, (shard, key, turns) in enumerate(plan):
            id = f"{i}-{turns}"
            keys[id] = (shard, key)
            calls.submit(shard, item(id, key))
            left[shard] += [id for id, _ in calls.take(shard)]
            while not calls.wait_for_room(TIMEOUT_S):
                raise AssertionError("no room came")
        while sum(map(len, left.values())) < len(plan):
            assert calls.wait_any_ready(TIMEOUT_S)
            for shard in left:
                left[shard] += [id for id, _ in calls.take(shard)]
    finally:
        calls.close()
    assert sorted(id for ids in left.values() for id in ids) == sorted(keys)
    assert answerer.max_in_flight <= capacity
    if ordering == "key":
        for shard, ids in left.items():
            for key in "abc":
                mine = [int(id.split("-")[0]) for id in ids if keys[id] == (shard, key)]
                assert mine == sorted(mine)


def test_call_pace_follows_the_fast_calls() -> None:
    calls = RequestPool(Scripted().open, capacity=1)
    try:
        for _ in range(200):
            calls._note_duration(2.0)
        assert calls.call_s == pytest.approx(2.0, rel=0.01)
        calls._note_duration(0.05)
        assert calls.call_s <= 0.1
    finally:
        calls.close()


class Told:
    """Counts how often it is notified of answers."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, TIMEOUT_S)


@pytest.fixture
def told_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RequestPool, Scripted, Told]]:
    # If this process was held up, no wake-up seems lost.
    monkeypatch.setattr("forebay.flink.request_pool.LOST_S", 3600.0)
    script, told = Scripted(), Told()
    calls = RequestPool(script.open, capacity=64, on_ready=told)
    calls.start()
    yield calls, script, told
    calls.close()


def test_one_wake_up_covers_all_answers_until_the_poll(
    told_calls: tuple[RequestPool, Scripted, Told],
) -> None:
    calls, script, told = told_calls
    ids = [str(i) for i in range(40)]
    for i, id in enumerate(ids):
        calls.submit(i % 3, item(id))
    script.wait_started(*ids)
    assert calls.ready() == []
    for id in ids[:24]:
        script.finish(id)
    told.wait(1)
    wait_until(lambda: calls.load.finished == 24)
    assert told.count == 1
    assert sorted(calls.ready()) == [0, 1, 2]
    assert sorted(id for shard in range(3) for id, _ in calls.take(shard)) == sorted(ids[:24])
    assert calls.ready() == []
    for id in ids[24:]:
        script.finish(id)
    told.wait(2)
    assert calls.ready()


def test_few_answers_are_taken_at_once_the_oldest_first(open_calls: Open) -> None:
    calls, script = open_calls(capacity=64)
    ids = [str(i) for i in range(MOST_TAKEN + 2)]
    for id in ids:
        calls.submit(0, item(id))
    script.wait_started(*ids)
    for id in ids:
        script.finish(id)
    wait_until(lambda: calls.load.finished == len(ids))
    taken = [[id for id, _ in calls.take(0)] for _ in range(3)]
    assert taken == [ids[:MOST_TAKEN], ids[MOST_TAKEN:], []]
    assert calls.load.finished == 0


def test_lost_wake_up_is_repeated(
    told_calls: tuple[RequestPool, Scripted, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.flink.request_pool.LOST_S", 0.0)
    calls, script, told = told_calls
    for id in "ab":
        calls.submit(0, item(id))
    script.wait_started("a", "b")
    script.finish("a")
    told.wait(1)
    script.finish("b")
    told.wait(2)


def test_broken_call_wakes_and_raises(told_calls: tuple[RequestPool, Scripted, Told]) -> None:
    calls, script, told = told_calls
    calls.submit(0, item("a"))
    script.wait_started("a")
    script.finish("a", ZeroDivisionError("a defect"))
    told.wait(1)
    with pytest.raises(ForebayError, match="a defect"):
        calls.ready()


def test_no_polling_while_all_slots_are_taken(open_calls: Open, later: Later) -> None:
    calls, script = open_calls(1)
    later.of(calls)
    calls.submit(0, item("a"))
    script.wait_started("a")
    looks = count_looks(calls)
    calls.submit(0, item("b"))
    flush(calls)
    assert looks == []
    # One that was under way when the last slot was taken is the last.
    calls._loop.call_soon_threadsafe(calls._look)
    flush(calls)
    assert later.names() == []
    script.finish("a")
    script.wait_started("b")


def test_immediate_successors_start_as_one_batch(open_calls: Open, later: Later) -> None:
    calls, script = open_calls(64)
    later.of(calls)
    calls.submit(0, item("a"))
    script.wait_started("a")
    flush(calls)
    assert later.names() == [], "nothing came before it"
    calls.submit(0, item("b"))
    script.wait_started("b")
    flush(calls)
    assert later.names() == ["_look"]
    looks = count_looks(calls)
    for id in "cde":
        calls.submit(0, item(id))
    flush(calls)
    assert looks == [], "none of them wakes the thread"
    later.run()
    script.wait_started(*"cde")
    flush(calls)
    assert later.names() == ["_look"], "more may follow"
    later.run()
    flush(calls)
    assert later.names() == [], "nothing has followed"
    calls.submit(0, item("f"))
    script.wait_started("f")


def test_simultaneous_answers_give_one_wake_up(
    told_calls: tuple[RequestPool, Scripted, Told], later: Later
) -> None:
    calls, script, told = told_calls
    later.of(calls)
    for id in "abcd":
        calls.submit(0, item(id))
        flush(calls)
        later.run()
    script.wait_started(*"abcd")
    later.run()
    assert later.names() == []

    def finish(id: str) -> None:
        finished = calls.finished
        script.finish(id)
        wait_until(lambda: calls.finished == finished + 1, TIMEOUT_S)
        flush(calls)

    finish("a")
    assert (told.count, later.names()) == (1, [])
    for id in "bc":
        assert calls.ready()
        finish(id)
        assert (told.count, later.names()) == (1, ["_notify"])
    later.run()
    flush(calls)
    assert told.count == 2
    assert calls.ready()
    finish("d")
    assert later.names() == ["_notify"]


def test_no_wake_up_for_answers_that_must_wait() -> None:
    script, told = Scripted(), Told()
    calls = RequestPool(script.open, capacity=2, ordering="key", on_ready=told)
    calls.start()
    try:
        for id in "ab":
            calls.submit(0, item(id, "k"))
        script.wait_started("a", "b")
        script.finish("b")
        wait_until(lambda: calls.finished == 1, TIMEOUT_S)
        flush(calls)
        assert told.count == 0
        script.finish("a")
        told.wait(1)
    finally:
        calls.close()


def test_answer_during_a_poll_wakes_again(
    told_calls: tuple[RequestPool, Scripted, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.flink.request_pool.GATHER_S", 0.0)
    calls, script, told = told_calls
    for shard, id in enumerate("ab"):
        calls.submit(shard, item(id))
    script.wait_started("a", "b")
    script.finish("a")
    told.wait(1)

    class Listed(dict[int, Any]):
        """The other answer arrives just after this was read."""

        def items(self) -> Any:
            listed = [(shard, list(answers)) for shard, answers in super().items()]
            script.finish("b")
            wait_until(lambda: calls.finished == 2, TIMEOUT_S)
            flush(calls)
            return listed

    calls._ready = Listed(calls._ready)
    assert calls.ready() == [0]
    assert told.count == 2


def test_poll_during_a_wake_up_gets_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.flink.request_pool.GATHER_S", 0.0)
    script, seen = Scripted(), list[list[int]]()
    calls = RequestPool(script.open, capacity=2, on_ready=lambda: seen.append(calls.ready()))
    calls.start()
    try:
        for shard, id in enumerate("ab"):
            calls.submit(shard, item(id))
        script.wait_started("a", "b")
        for count, id in enumerate("ab", 1):
            script.finish(id)
            wait_until(lambda count=count: calls.finished == count, TIMEOUT_S)  # type: ignore[misc]
            flush(calls)
        assert seen == [[0], [0, 1]]
    finally:
        calls.close()


JOINED, LEFT = -1, -2


class Core(OneCore):
    def __init__(self) -> None:
        super().__init__()
        self.looks: list[int] = []

    def join(self, *, pool: bool = False) -> None:
        self.looks.append(JOINED)

    def look(self, answers: int) -> bool:
        self.looks.append(answers)
        return answers > 0

    def leave(self) -> None:
        self.looks.append(LEFT)


class Seconds:
    """Runs what a pool plans for the next second when the test decides."""

    def __init__(self, calls: RequestPool) -> None:
        self._loop = calls._loop
        self._soon = calls._loop.call_later
        self.due: list[Callable[[], None]] = []
        calls._loop.call_later = self._plan  # type: ignore[assignment, method-assign]

    def _plan(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        if delay_s >= LOOK_S:
            self.due.append(partial(callback, *arguments))
        else:
            self._soon(delay_s, callback, *arguments)

    def run(self) -> None:
        for callback in self.due:
            self.due.remove(callback)
            asyncio.run_coroutine_threadsafe(_call(callback), self._loop).result(TIMEOUT_S)


async def _call(callback: Callable[[], None]) -> None:
    callback()


def test_the_core_is_looked_at_while_calls_finish() -> None:
    core, script = Core(), Scripted()
    calls = RequestPool(script.open, capacity=4, core=core)
    later = Seconds(calls)
    calls.start()
    try:
        for ids, answers in (("ab", 2), ("", 0), ("c", 1)):
            for id in ids:
                calls.submit(0, item(id))
                script.wait_started(id)
                script.finish(id)
            take(calls, n=len(ids))
            assert len(later.due) == 1, "one for all calls, and one more after each that found answers"
            later.run()
            assert core.looks.pop() == answers
        later.run()
        assert later.due == []
    finally:
        calls.close()
    assert core.looks == [JOINED, 0, LEFT]


class Later:
    """Runs a pool loop's delayed calls when the test decides: no real delay would be long enough."""

    def __init__(self) -> None:
        self._calls: RequestPool | None = None
        self._due: list[Callable[[], None]] = []

    def of(self, calls: RequestPool) -> None:
        self._calls = calls
        calls._loop.call_later = self._plan  # type: ignore[assignment]

    def _plan(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._due.append(callback)

    def names(self) -> list[str]:
        return [callback.__name__ for callback in self._due]

    def run(self) -> None:
        assert self._calls is not None
        due, self._due = self._due, []
        for callback in due:
            self._calls._loop.call_soon_threadsafe(callback)
        flush(self._calls)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    monkeypatch.setattr("forebay.flink.request_pool.GATHER_S", 3600.0)
    return Later()


def flush(calls: RequestPool) -> None:
    """Block until the loop has run everything submitted so far and its consequences."""
    for _ in range(3):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), calls._loop).result(TIMEOUT_S)


def count_looks(calls: RequestPool) -> list[None]:
    """A list that grows with each look from now on."""
    looks: list[None] = []
    look = calls._look

    def _look() -> None:
        looks.append(None)
        look()

    calls._look = _look  # type: ignore[method-assign]
    return looks


def test_calls_in_quick_succession_all_start(told_calls: tuple[RequestPool, Scripted, Told]) -> None:
    calls, script, _ = told_calls
    for i in range(60):
        calls.submit(0, item(str(i)))
        if i % 7 == 0:
            script.wait_started(str(i))
    script.wait_started(*map(str, range(60)))
