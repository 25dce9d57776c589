"""The replacement for Flink keeps what Flink keeps, and loses what Flink loses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, OutputTag
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.harness.chain import Chain, Operator
from tests.harness.keyed_state import WallClock

from forebay.flink.shards import flink_keys
from forebay.flink.types import STATE

KEYS = flink_keys(4)
ASIDE = OutputTag("aside", Types.LONG())


class Sum(KeyedProcessFunction):
    """Emits the sum of its key after each number, and again at each timer that an even number sets."""

    def open(self, runtime_context: Any) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", STATE))

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        self._sum.update(b"%d" % (self._now() + value))
        if value % 2 == 0:
            ctx.timer_service().register_event_time_timer(value)
            ctx.timer_service().register_processing_time_timer(
                ctx.timer_service().current_processing_time() + value
            )
        yield self._now()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield f"{self._now()} at {timestamp}"

    def _now(self) -> int:
        return int(self._sum.value() or 0)


def chain(*numbers: int, clock: WallClock | None = None, **options: Any) -> Chain:
    operator = Operator(Sum, lambda value: KEYS[value % 4])
    elements = [(number, number - 1) for number in numbers]
    return Chain([operator], elements, clock or WallClock(0), **options)


def take_all(run: Chain) -> None:
    while ready := run.ready():
        run.take(*ready[0])


def test_timers_fire_once_in_time_and_the_final_watermark_fires_the_rest() -> None:
    run = chain(4, 8)
    run.read()
    take_all(run)
    assert run.outputs == (4,)
    run.read()
    take_all(run)
    assert run.outputs == (4, 12, "12 at 4")
    run.finish()
    assert run.outputs == (4, 12, "12 at 4", "12 at 8")


def test_a_processing_time_timer_keeps_its_delay_if_the_clock_is_set() -> None:
    clock = WallClock(1000)
    run = chain(4, clock=clock)
    run.read()
    take_all(run)
    clock.step(-500)
    run.pass_time(0.003)
    assert run.outputs == (4,)
    run.pass_time(0.001)
    assert run.outputs == (4, "4 at 1004")


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_checkpoint_holds_what_was_taken_before_its_barrier_and_no_more(parallelism: int) -> None:
    run = chain(1, 5, 9, 2, parallelism=2)
    run.read()
    run.begin_checkpoint()
    run.read()
    run.read()
    assert run.newest is None
    take_all(run)
    assert run.outputs == (1, 6, 15)
    left = run.newest
    assert left is not None
    assert (left.read, left.outputs) == (1, (1,))
    again = chain(1, 5, 9, 2, parallelism=parallelism, restored=left)
    again.finish()
    assert [each for each in again.outputs if isinstance(each, int)] == [1, 6, 15, 2]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_unaligned_checkpoint_holds_what_is_on_its_way(parallelism: int) -> None:
    run = chain(1, 5, 9)
    run.read()
    run.read()
    run.take(*run.ready()[0])
    run.checkpoint_at_once()
    again = chain(1, 5, 9, parallelism=parallelism, restored=run.newest)
    again.finish()
    assert again.outputs == (1, 6, 15)


def test_a_barrier_waits_for_those_of_all_inputs() -> None:
    # Two subtasks in front of one: the barrier of one input holds that input back.
    first = Operator(Sum, lambda value: KEYS[value % 4])
    second = Operator(Sum, lambda value: KEYS[0], one_subtask=True)
    run = Chain([first, second], [(1, None), (3, None), (5, None)], WallClock(0), parallelism=2)
    for _ in range(2):
        run.read()
    run.begin_checkpoint()
    run.read()
    while ready := [place for place in run.ready() if place[:2] == (0, 0)]:
        run.take(*ready[0])
    while ready := [place for place in run.ready() if place[0] == 1]:
        run.take(*ready[0])
    assert run.newest is None
    take_all(run)
    assert run.newest is not None
    assert run.newest.outputs == (1, 4)
    assert run.outputs == (1, 4, 10)


class Places(KeyedProcessFunction):
    """Keeps each text in a list and in a map; emits both."""

    def open(self, runtime_context: Any) -> None:
        self._list = runtime_context.get_list_state(ListStateDescriptor("list", STATE))
        self._map = runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), STATE))

    def process_element(self, value: str, ctx: Any) -> Iterator[Any]:
        self._list.add(value.encode())
        self._map.put(value, b"%d" % len(value))
        yield [list(self._list.get()), dict(self._map.items())]


def test_lists_and_maps_belong_to_a_key_and_checkpoints_do_not_change() -> None:
    operator = Operator(Places, lambda value: KEYS[len(value) % 4])
    elements = [("a", None), ("bb", None), ("c", None)]
    run = Chain([operator], elements, WallClock(0))
    run.read()
    take_all(run)
    run.checkpoint_at_once()
    run.finish()
    assert run.outputs[1:] == ([[b"bb"], {"bb": b"2"}], [[b"a", b"c"], {"a": b"1", "c": b"1"}])
    again = Chain([operator], elements, WallClock(0), restored=run.newest)
    again.finish()
    assert again.outputs == run.outputs


class Timed(KeyedProcessFunction):
    """Emits each number with a time; odd ones to a side output."""

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        yield (ASIDE, value) if value % 2 else (value, value)


def test_an_operators_own_watermarks_are_in_no_checkpoint() -> None:
    def run(**options: Any) -> Chain:
        first = Operator(Timed, lambda _: KEYS[0], one_subtask=True, late_ms=3)
        # Watermarks with the elements have no effect after the first operator.
        elements = [(number, 1000) for number in (4, 7, 6, 10, 12)]
        return Chain([first, Operator(Sum, lambda _: KEYS[0])], elements, WallClock(0), **options)

    whole = run()
    for _ in range(4):
        whole.read()
        take_all(whole)
    assert whole.outputs == (4, (ASIDE, 7), 10, 20, "20 at 4", "20 at 6")
    whole.checkpoint_at_once()
    again = run(restored=whole.newest)
    again.read()
    take_all(again)
    assert again.outputs == (*whole.outputs, 32)
    again.finish()
    assert again.outputs == (*whole.outputs, 32, "32 at 10", "32 at 12")
